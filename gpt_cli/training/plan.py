"""What a run would be, before it is one: `gpt train --dry-run`."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gpt_cli.config import Config
from gpt_cli.corpus.build import prepare_corpus
from gpt_cli.model.count import flops_per_token, memory_bytes, parameter_table
from gpt_cli.runtime.device import open_runtime
from gpt_cli.training.batches import Batches, on_device
from gpt_cli.training.loop import train_step
from gpt_cli.training.state import TrainingState

_MEASURED_STEPS = 3


@dataclass(frozen=True)
class Plan:
    """The sizes and the cost of a run."""

    run_dir: str
    device: str
    vocab_size: int
    parameters: int
    parameter_table: list[tuple[str, tuple[int, ...], int]]
    input_shape: tuple[int, int]
    logits_shape: tuple[int, int, int]
    memory_bytes: dict[str, int]
    flops_per_token: int
    train_tokens: int
    val_tokens: int
    steps: int
    tokens_per_step: int
    epochs: float
    tokens_per_parameter: float
    seconds_per_step: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """All of it by name."""
        return asdict(self)


def plan(config: Config, note: Callable[[str], None]) -> Plan:
    """Work out what training `config` would be; the time is measured over a few steps. Writes nothing."""
    runtime = open_runtime(config.runtime)
    corpus = prepare_corpus(config.data, config.tokenizer, cache=False, note=note)
    vocab_size = corpus.tokenizer.vocab_size
    batches = Batches.of(config, on_device(corpus.train, runtime.device))
    state = TrainingState.fresh(config, vocab_size, runtime, note)
    train_step(state, batches.at(0), config, 0, 0.0, runtime)  # the first one also allocates
    started = time.perf_counter()
    for step in range(_MEASURED_STEPS):
        loss, _ = train_step(state, batches.at(step), config, step, 0.0, runtime)
    loss.item()  # a GPU is done only now
    seconds_per_step = (time.perf_counter() - started) / _MEASURED_STEPS

    tokens_per_step = batches.tokens_per_step
    n_evaluation = 1 + (config.train.steps // config.eval.every if config.eval.every is not None else 0)
    # A forward pass is about a third of a training step.
    seconds_per_evaluation = seconds_per_step / 3 * len(corpus.val) / tokens_per_step
    table = parameter_table(config.model, vocab_size)
    parameters = sum(n for _, _, n in table)
    trained_tokens = config.train.steps * tokens_per_step
    micro, context = config.train.sequences_per_forward, config.model.context_length
    return Plan(
        run_dir=config.run_dir or "",
        device=runtime.describe(),
        vocab_size=vocab_size,
        parameters=parameters,
        parameter_table=table,
        input_shape=(micro, context),
        logits_shape=(micro, context, vocab_size),
        memory_bytes=memory_bytes(config, vocab_size),
        flops_per_token=flops_per_token(config.model, vocab_size),
        train_tokens=len(corpus.train),
        val_tokens=len(corpus.val),
        steps=config.train.steps,
        tokens_per_step=tokens_per_step,
        epochs=trained_tokens / len(corpus.train),
        tokens_per_parameter=trained_tokens / parameters,
        seconds_per_step=seconds_per_step,
        seconds=config.train.steps * seconds_per_step + n_evaluation * seconds_per_evaluation,
    )
