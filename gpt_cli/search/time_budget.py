"""`train.budget`: the run with the lowest expected loss that ends on time, from the speed of this machine.

The choice is a pure function of the measurements: the candidate whose loss `budget_law.py` expects to be lowest.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpt_cli.config import Config, dump_config, load_config, parse_config
from gpt_cli.config.dump import to_yaml_scalar
from gpt_cli.config.keys import dotted_keys, get_key
from gpt_cli.config.load import merge_layers, read_config_file
from gpt_cli.config.section import parse_duration
from gpt_cli.corpus.prepare import Corpus, prepare_corpus
from gpt_cli.cpu.common.kernel import COMPILING
from gpt_cli.errors import Notify, RequestError
from gpt_cli.files.kinds import CONFIG
from gpt_cli.literals import SUBWORD_KINDS
from gpt_cli.model.sizing import is_hidden_matrix, parameter_table
from gpt_cli.run.run_files import run_of
from gpt_cli.runtime.device import Runtime, setup_runtime
from gpt_cli.runtime.oom import is_out_of_memory
from gpt_cli.search.auto_config import fitting_context
from gpt_cli.search.budget_law import BUDGET_LAW
from gpt_cli.search.regularization import LARGE_STEP, regularization
from gpt_cli.search.run_budget import LENGTHS, refuse_another_length
from gpt_cli.search.timing import time_steps
from gpt_cli.terminal.words import plural
from gpt_cli.training.example_batches import open_batches
from gpt_cli.training.schedule_clock import OVERRUN
from gpt_cli.training.state import TrainingState

SHAPE = ("model.n_layer", "model.n_head", "model.n_embd")
CHOSEN = (
    *(*SHAPE, "model.context_length", "model.dropout"),
    *("train.batch_size", "train.steps", "train.max_minutes"),
    *("optim.weight_decay", "schedule.warmup_steps", "eval.every", "checkpoint.every", "sample.every"),
)
"""The keys that a budget decides, unless they are set."""

LADDER = (
    ((2, 2, 64), 64, 12),
    ((2, 2, 64), 128, 16),
    ((4, 4, 128), 64, 12),
    ((4, 4, 128), 128, 16),
    ((4, 4, 128), 256, 16),
    ((4, 4, 192), 256, 16),
    ((4, 4, 256), 256, 8),
    ((6, 6, 384), 256, 8),
    ((6, 6, 384), 256, 64),
    ((8, 8, 512), 512, 32),
    ((12, 12, 768), 1024, 32),
)
"""The candidates, for budgets from a second to hours: (n_layer, n_head, n_embd), context, batch of characters.

A token of a BPE is two to four characters, so its batches have half as many: better on two of three texts, and 0.02
bits per byte worse on the third (docs/recipes.md).
"""
GPU_LADDER = (
    ((4, 4, 128), 256, 16),
    ((4, 4, 256), 256, 16),
    ((6, 6, 384), 256, 16),
    ((6, 6, 384), 512, 16),
    ((6, 6, 384), 512, 32),
    ((8, 8, 512), 512, 16),
    ((8, 8, 512), 512, 32),
    ((12, 12, 768), 1024, 32),
)
"""The same for a GPU, where the smallest of these take as long: the time that launching their kernels takes."""
MOST_EPOCHS, MOST_EPOCHS_OF_LARGE_STEPS = 24, 10
"""Passes over the text after which a run ends, whatever time is left: more were not measured (docs/recipes.md)."""
_MEASURED_STEPS = 3
_FEWEST_STEPS = 20
_SLACK = 0.98  # of the time; a machine that turns out slower has its schedule shortened (`ScheduleClock`)
_EVALUATIONS = 3  # before, amid and after
_EVALUATION_SHARE = 0.05  # of the time, which these may take at most; else the one after alone


@dataclass(frozen=True)
class BudgetCandidate:
    """A possible run, and its measured speed."""

    shape: tuple[int, int, int]  # n_layer, n_head, n_embd
    context_length: int
    batch_size: int
    parameters: int
    """Without embeddings and head."""
    seconds_per_step: float
    tokens_read: int | None = None
    """By a step on average, without padding; None: its batch of whole contexts."""

    @property
    def tokens_per_step(self) -> int:
        return self.tokens_read or self.batch_size * self.context_length


@dataclass(frozen=True)
class BudgetChoice:
    """A candidate, the steps for which there is time, and the expected loss (nats per token)."""

    candidate: BudgetCandidate
    steps: int
    loss: float
    evaluations: int


def predict_choice(
    candidate: BudgetCandidate,
    seconds: float,
    train_tokens: int,
    val_tokens: int,
    *,
    is_evaluated: bool = False,
    eval_every: int | None = None,
) -> BudgetChoice | None:
    """The predicted result of `candidate` in `seconds`; None if it cannot train usefully.

    Evaluations are paid from it: a forward pass over the validation split is a third of training on it. `is_evaluated`:
    the run needs those on its way, too. `eval_every`: there is one after this many steps.
    """
    evaluation = val_tokens / candidate.tokens_per_step * candidate.seconds_per_step / 3.0
    are_cheap = _EVALUATIONS * evaluation <= _EVALUATION_SHARE * seconds
    evaluations = _EVALUATIONS if is_evaluated or are_cheap else 1
    seconds_per_step = candidate.seconds_per_step
    if eval_every is not None:
        evaluations = 2  # before and after
        seconds_per_step += evaluation / eval_every
    steps = int((_SLACK * seconds - evaluations * evaluation) / seconds_per_step)
    if steps < _FEWEST_STEPS:
        return None
    steps = min(steps, max(_FEWEST_STEPS, most_steps(candidate, train_tokens)))
    tokens = steps * candidate.tokens_per_step
    return BudgetChoice(
        candidate,
        steps,
        BUDGET_LAW.expected_loss(candidate.parameters, candidate.context_length, steps, tokens, train_tokens),
        evaluations,
    )


def most_steps(candidate: BudgetCandidate, train_tokens: int) -> int:
    """The steps in which `candidate` reads the text as often as is worth it."""
    is_large = candidate.tokens_per_step >= LARGE_STEP
    return (MOST_EPOCHS_OF_LARGE_STEPS if is_large else MOST_EPOCHS) * train_tokens // candidate.tokens_per_step


def best_choice(predictions: Sequence[tuple[BudgetCandidate, BudgetChoice | None]], seconds: float) -> BudgetChoice:
    """The choice with the lowest expected loss in this many `seconds`. Raises RequestError where none ends in time."""
    possible = [choice for _, choice in predictions if choice is not None]
    if not possible:
        fastest = min(candidate.seconds_per_step for candidate, _ in predictions)
        raise RequestError(
            f"train.budget leaves {max(0.0, seconds):.1f} s for training and evaluating, and the smallest model takes"
            f" {1e3 * fastest:,.0f} ms a step: too few for {_FEWEST_STEPS} steps",
            hint="give it more time: train.budget=10m",
        )
    return min(possible, key=lambda choice: choice.loss)


def chosen_values(
    choice: BudgetChoice, seconds: float, train_tokens: int, *, chooses_decay: bool = True
) -> dict[str, Any]:
    """The values by key of `choice`, without the weight decay unless it `chooses_decay`."""
    candidate, steps = choice.candidate, choice.steps
    epochs = steps * candidate.tokens_per_step / train_tokens
    n_layer, n_head, n_embd = candidate.shape
    return {
        "model.n_layer": n_layer,
        "model.n_head": n_head,
        "model.n_embd": n_embd,
        "model.context_length": candidate.context_length,
        **regularization(epochs, candidate.tokens_per_step, chooses_decay=chooses_decay),
        "train.batch_size": candidate.batch_size,
        "train.steps": steps,
        "train.max_minutes": round(OVERRUN * seconds / 60.0, 4),
        "schedule.warmup_steps": min(20, steps // 10),
        "eval.every": None if choice.evaluations == 1 else max(1, steps // 2 + 1),
        "checkpoint.every": max(1, steps // 4),
        "sample.every": None,
    }


def explain_choice(
    chosen: BudgetChoice,
    predictions: Sequence[tuple[BudgetCandidate, BudgetChoice | None]],
    seconds: float,
    *,
    is_predicted: bool,
) -> list[str]:
    """Lines that explain the choice: the speed of each candidate, and its expected loss if `is_predicted`.

    The law predicts characters of text; the losses of other tokens and of examples it only ranks.
    """
    outcomes = "with the loss that each would come to" if is_predicted else "the lowest loss is expected at ->"
    lines = [f"{seconds:,.0f} s to train in; measured here, {outcomes}:"]
    for candidate, prediction in predictions:
        outcome = "too slow"
        if prediction is not None:
            loss = f", loss {prediction.loss:.2f}" if is_predicted else ""
            outcome = f"{plural(prediction.steps, 'step')}{loss}"
        mark = "->" if candidate == chosen.candidate else "  "
        n_layer, _, n_embd = candidate.shape
        lines.append(
            f"{mark} {plural(n_layer, 'layer')} of width {n_embd},"
            f" {candidate.batch_size} x {candidate.context_length} tokens:"
            f" {1e3 * candidate.seconds_per_step:,.0f} ms a step, {outcome}"
        )
    return lines


def config_for_budget(config: Config, seconds: float, corpus: Corpus, written: frozenset[str], note: Notify) -> Config:
    """`config` with the keys of CHOSEN (but those `written` by the user) set for a run that ends in `seconds` from now.

    Measuring takes about a tenth of the time. Raises RequestError where nothing can be learned in that time.
    """
    started = time.perf_counter()
    runtime = setup_runtime(config.runtime)
    measured: list[BudgetCandidate] = []
    compiled: list[str] = []  # notes that the compiler is running

    def listen(message: str) -> None:
        if message.startswith(COMPILING):
            compiled.append(message)
        note(message)

    sizes = (len(corpus.train), min(len(corpus.val), config.eval.max_tokens or len(corpus.val)))
    stops_early = config.train.patience is not None or config.train.until_loss is not None
    eval_every = config.eval.every if "eval.every" in written else None

    def predict_all() -> tuple[float, list[tuple[BudgetCandidate, BudgetChoice | None]]]:
        left = seconds - (time.perf_counter() - started)
        how = partial(predict_choice, seconds=left, train_tokens=sizes[0], val_tokens=sizes[1])
        return left, [(one, how(one, is_evaluated=stops_early, eval_every=eval_every)) for one in measured]

    note(f"measuring how fast models of several sizes train here, for up to {max(1, round(seconds / 10)):,} s")
    candidates = _open_candidates(config, written, len(corpus.val), runtime.device.type)
    if runtime.device.type != "cpu":  # the first step on a GPU loads its libraries, which takes seconds
        time_candidate(with_values(config, candidates[0]), corpus, runtime, listen)
    measuring = time.perf_counter()
    for ladder in candidates:
        try:
            measured.append(time_candidate(with_values(config, ladder), corpus, runtime, listen))
        except (MemoryError, RuntimeError) as error:
            if not measured or not is_out_of_memory(error):
                raise
            break
        losses = [math.inf if choice is None else choice.loss for _, choice in predict_all()[1]]
        are_worse = len(losses) > 2 and min(losses[-2:]) > min(losses) + 0.05
        if time.perf_counter() - measuring > seconds / 10 or are_worse:
            break  # those after take as long or longer; one alone may have been disturbed
    left, predictions = predict_all()
    try:
        choice = best_choice(predictions, left)
    except RequestError as error:
        if compiled:
            error.hint = f"start it again: this time it also compiled its C code, once on a machine; or {error.hint}"
        raise
    is_predicted = config.data.format == "text" and corpus.tokenizer.kind not in SUBWORD_KINDS
    note("\n".join(explain_choice(choice, predictions, left, is_predicted=is_predicted)))
    if choice.steps >= most_steps(choice.candidate, sizes[0]):
        note("it ends sooner: it would read the text so often that it learned it by heart")
    has_own = config.train.init_from is not None or config.recipe is not None or config.optim.name != "muon"
    chosen = chosen_values(choice, left, sizes[0], chooses_decay=not has_own)
    values = {key: value for key, value in chosen.items() if key not in written}
    return with_values(config, values)


def time_candidate(config: Config, corpus: Corpus, runtime: Runtime, note: Notify) -> BudgetCandidate:
    """The median time of a few training steps of `config`, the first excluded: it also allocates."""
    eager = config.runtime.model_copy(update={"compile": False})  # compiling each candidate would take all of the time
    config = config.model_copy(update={"runtime": eager})
    state = TrainingState.initialize(config, corpus.tokenizer.vocab_size, runtime, note)
    batches = open_batches(config, corpus, runtime.device, lambda _: None)
    times = [time_steps(state, batches, config, runtime, [step]) for step in range(1 + _MEASURED_STEPS)]
    model = config.model
    return BudgetCandidate(
        (model.n_layer, model.n_head, model.n_embd),
        model.context_length,
        config.train.batch_size,
        sum(
            n for name, shape, n in parameter_table(model, corpus.tokenizer.vocab_size) if is_hidden_matrix(name, shape)
        ),
        statistics.median(times[1:]),
        batches.tokens_per_step,
    )


def with_values(config: Config, values: dict[str, Any]) -> Config:
    """`config` with other values under some dotted keys, checked like a file."""
    return parse_config(
        dump_config(config), "train.budget", [f"{key}={to_yaml_scalar(v)}" for key, v in values.items()]
    )


def choose_for_budget(
    config: Config, file: Path | None, overrides: Sequence[str], started: float, note: Notify, *, together: bool
) -> Config:
    """`config`, from `file` (None: fitted to a text) under `overrides`, made to end `train.budget` after `started`.

    `started` is by `time.perf_counter`. Raises RequestError where another length is asked for, too, the time is too
    short, or several processes are to train it `together`.
    """
    assert config.run_dir is not None
    budget, run_dir = config.train.budget, config.run_dir
    assert budget is not None
    fixed = dotted_keys(merge_layers("", "the overrides", overrides).values)
    if "train.budget" in fixed or run_of(config) is None:
        refuse_another_length({key: get_key(config, key) for key in fixed})
    elif asked := [key for key in LENGTHS if key in fixed and get_key(config, key) is not None]:
        raise RequestError(f"{asked[0]} of {run_dir} was chosen for train.budget={budget}", kind="another run")
    if file is not None:
        fixed |= dotted_keys(merge_layers(read_config_file(file), str(file), ()).values)
    fixed -= {*LENGTHS}  # the time decides them
    if config.train.init_from is not None:  # the run whose weights are taken decides on the model
        fixed |= {*SHAPE, "model.context_length"}
    if file is None and config.data.format != "text":  # the longest example decides on the context
        fixed |= {"model.context_length"}
    if (written := Path(run_dir, CONFIG)).is_file():
        run = load_config(written)
        if run.train.budget not in (None, budget):
            raise RequestError(f"{run_dir} was planned for train.budget={run.train.budget}", kind="another run")
        return choice_of_run(config, run, fixed) if run.train.budget == budget else config
    if together:
        raise RequestError("train.budget is chosen for one process: several take train.max_minutes instead")
    corpus = prepare_corpus(config.data, config.tokenizer, note=note)
    seconds = (parse_duration(budget) or 0) - (time.perf_counter() - started)
    return config_for_budget(config, seconds, corpus, fixed, note)


def choice_of_run(config: Config, run: Config, written: frozenset[str]) -> Config:
    """`config` with the values that a budget chose when `run` was started."""
    return with_values(config, {key: get_key(run, key) for key in CHOSEN if key not in written})


def _open_candidates(
    config: Config, written: frozenset[str], val_tokens: int, device_type: str
) -> list[dict[str, Any]]:
    """The rungs of the device's ladder as {key: value}, without keys that are set."""
    candidates: list[dict[str, Any]] = []
    for shape, context_length, batch_size in LADDER if device_type == "cpu" else GPU_LADDER:
        values: dict[str, Any] = {}
        if not written & set(SHAPE):
            values |= dict(zip(SHAPE, shape, strict=True))
        if "model.context_length" not in written:
            values["model.context_length"] = fitting_context(val_tokens, context_length)
        if "train.batch_size" not in written:
            part = config.train.micro_batch_size or 1  # of which a batch is a multiple
            batch_size //= 2 if config.tokenizer.kind in SUBWORD_KINDS else 1
            values["train.batch_size"] = -(-batch_size // part) * part
        if values not in candidates:
            candidates.append(values)
    return candidates
