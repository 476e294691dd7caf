"""The difficulty of a text: the loss that a small model reaches on it over the one that the law of a budget expects.

The law (`budget_law.py`) is that of tiny Shakespeare. Other texts are easier or harder to predict, and nothing measures
that as well as some seconds of training on them. All losses of the law are multiplied by it.
"""

from gpt_cli.config import Config
from gpt_cli.config.keys import replace_keys
from gpt_cli.corpus.prepare import Corpus
from gpt_cli.corpus.tokens import sample_evenly
from gpt_cli.model.sizing import hidden_parameters
from gpt_cli.runtime.device import Runtime
from gpt_cli.search.auto_config import fitting_context
from gpt_cli.search.budget_law import BUDGET_LAW
from gpt_cli.search.recurrence import Recurrence
from gpt_cli.search.timing import time_steps
from gpt_cli.training.evaluate import EvaluationText
from gpt_cli.training.evaluate_task import evaluate_task
from gpt_cli.training.example_batches import open_batches
from gpt_cli.training.schedule import lr_multiplier
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step

SMALL, SMALLEST = (
    {"model.n_layer": n_layer, "model.n_head": n_head, "model.n_kv_head": None, "model.n_embd": n_embd}
    for n_layer, n_head, n_embd in ((4, 4, 128), (2, 2, 64))
)
FEWEST_STEPS = ((SMALL, 300), (SMALLEST, 100))
"""The probes, the better one first, and the steps that each must have."""
MOST_STEPS = 400
PROBE_SHARE = 0.03
"""Of the time of a budget."""
_RECIPE = {
    **{"model.dropout": 0.0, "train.batch_size": 16, "train.micro_batch_size": None, "optim.lr": 0.02},
    **{"optim.weight_decay": 0.1, "schedule.kind": "wsd", "schedule.warmup_steps": 20, "schedule.decay_fraction": 0.75},
}
_CONTEXT_LENGTH = 128
_VALIDATION_TOKENS, _VALIDATION_PARTS = 200_000, 20


def measure_difficulty(
    config: Config, seconds: float, corpus: Corpus, runtime: Runtime, recurrence: Recurrence
) -> float | None:
    """Train a probe for so many `seconds`; return its validation loss over the one that the law expects of it.

    None if there is not enough time for either.
    """
    eager = config.runtime.model_copy(update={"compile": False})  # compiling would take all of the time
    config = config.model_copy(update={"runtime": eager})
    context_length = fitting_context(len(corpus.val), _CONTEXT_LENGTH)
    for shape, fewest in FEWEST_STEPS:
        probe = replace_keys(config, {**shape, **_RECIPE, "model.context_length": context_length})
        state = TrainingState.initialize(probe, corpus.tokenizer.vocab_size, runtime, _ignore)
        batches = open_batches(probe, corpus, runtime.device, _ignore)
        time_steps(state, batches, probe, runtime, [0])  # the first also allocates
        steps = min(MOST_STEPS, int(seconds / time_steps(state, batches, probe, runtime, [0])))
        if steps >= fewest:
            break
    else:
        return None
    for step in range(steps):
        train_step(state, batches.at(step), probe, step, lr_multiplier(step, steps, probe.schedule), runtime)
    validation = sample_evenly(corpus.val, _VALIDATION_TOKENS, _VALIDATION_PARTS)
    dataset = EvaluationText.of(validation, corpus.tokenizer, runtime.device)
    loss = evaluate_task(state.model, state.engine, dataset, probe.eval.batch_size).loss
    size, tokens = hidden_parameters(probe.model, corpus.tokenizer.vocab_size), steps * batches.tokens_per_step
    recurring = recurrence.within(context_length)
    return loss / BUDGET_LAW.expected_loss(size, context_length, steps, tokens, len(corpus.train), recurring)


def _ignore(_: str) -> None:
    """Take a note on the probe, which is no run."""
