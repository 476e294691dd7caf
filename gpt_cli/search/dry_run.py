"""Plan a run without training it: `gpt train --dry-run`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpt_cli.config import Config
from gpt_cli.config.keys import replace_keys
from gpt_cli.corpus.prepare import Corpus, prepare_corpus
from gpt_cli.errors import Notify
from gpt_cli.run.checkpoint import checkpoint_step, list_checkpoints
from gpt_cli.run.directory import refuse_foreign
from gpt_cli.run.lifecycle import why_over
from gpt_cli.run.log import read_events
from gpt_cli.run.model_info import Info, describe
from gpt_cli.run.resume import resumed_changes
from gpt_cli.run.run_corpus import restoring_text
from gpt_cli.runtime.device import Runtime, setup_runtime
from gpt_cli.runtime.oom import available_memory
from gpt_cli.search.timing import time_steps
from gpt_cli.terminal.progress import stage_progress
from gpt_cli.training.batches import Batches
from gpt_cli.training.device_tokens import DeviceTokens
from gpt_cli.training.example_batches import ExampleBatches, open_example_batches
from gpt_cli.training.labelled_rows import with_labels
from gpt_cli.training.schedule import schedule_warning
from gpt_cli.training.state import TrainingState
from gpt_cli.training.training_samples import sample_prompt

_ENDINGS = {"train.steps", "train.max_minutes", "train.patience", "train.until_loss"}  # when a run is over
_MEASURED_STEPS = 3
_LONG_STEP = 10.0  # seconds of a first step from which it is the measurement, without three more
_ACTIVATION_DIVISOR = 4  # the C engine keeps at least this part of the activations estimated for torch
_MAX_BYTES = 1 << 32  # of weights, gradients and optimizer on a CPU; of a larger model one and two layers are measured
_MAX_SHALLOW_BYTES = 150_000_000
_MEASURED_TOKENS = 1 << 20  # read from the training split for the measured steps


@dataclass(frozen=True)
class Plan:
    """The sizes and the cost of a run."""

    info: Info
    device: str
    input_shape: tuple[int, int]
    logits_shape: tuple[int, int, int]
    train_tokens: int
    val_tokens: int
    steps: int
    epochs: float
    tokens_per_parameter: float
    seconds_per_step: float | None
    """None, as is `seconds`, if it was not measured because memory is too small."""
    seconds: float | None
    saved_step: int | None = None
    """The newest saved step of the run, from which it would go on; `seconds` is the time of the others."""
    over: str | None = None
    """Why the run is over before its last step, if it is."""
    schedule_warning: str | None = None
    """The part of the schedule that the warm-up leaves no room for, if there is one."""
    measured_layers: tuple[int, ...] = ()
    """Layers of the models that were measured; the time of a large one is extrapolated from one and two layers."""

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        info: dict[str, Any] = fields.pop("info")
        return info | fields


def plan(config: Config, note: Notify) -> Plan:
    """Return the plan of training `config`, its time measured over a few steps. Writes nothing but caches."""
    if config.run_dir is not None:
        refuse_foreign(Path(config.run_dir))
    runtime = setup_runtime(config.runtime)
    with stage_progress() as progress, restoring_text(config):
        corpus = prepare_corpus(config.data, config.tokenizer, verify=False, note=note, progress=progress)
    config = with_labels(config, corpus)
    changes = resumed_changes(config)
    sample_prompt(corpus, config)  # raises, as it does before training
    vocab_size = corpus.tokenizer.vocab_size
    train_tokens, val_tokens = (corpus.stats[split].tokens for split in ("train", "val"))
    batches = _batches(config, corpus, runtime, note)
    info = describe(Path(config.run_dir or ""), config, vocab_size)
    seconds_per_step = seconds = None
    saved = next(iter(list_checkpoints(Path(config.run_dir))), None) if config.run_dir is not None else None
    saved_step = None if saved is None else checkpoint_step(saved)
    is_as_it_was = saved is not None and _ENDINGS.isdisjoint(changes)
    over = why_over(read_events(Path(config.run_dir or "")), saved_step) if is_as_it_was else None
    steps_left = 0 if over is not None else max(0, config.train.steps - (saved_step or 0))
    if candidates := _measured_configs(config, info, vocab_size, runtime):
        times = [_measure(candidate, batches, vocab_size, runtime, note) for candidate in candidates]
        layers = config.model.n_layer - candidates[0].model.n_layer
        seconds_per_step = times[0] + layers * max(0.0, times[-1] - times[0])
        # A forward pass is about a third of a training step.
        seconds_per_evaluation = seconds_per_step / 3 * val_tokens / batches.tokens_per_step
        n_evaluation = 1 + (steps_left // config.eval.every if config.eval.every is not None else 0)
        seconds = steps_left * seconds_per_step + n_evaluation * seconds_per_evaluation if steps_left else 0.0
    trained_tokens = config.train.steps * batches.tokens_per_step
    labels = config.task.labels
    micro_batch_size, context_length = config.train.sequences_per_forward, config.model.context_length
    return Plan(
        info=info,
        device=runtime.describe(),
        input_shape=(micro_batch_size, context_length),
        logits_shape=(micro_batch_size, *((context_length, vocab_size) if labels is None else (1, len(labels)))),
        train_tokens=train_tokens,
        val_tokens=val_tokens,
        steps=config.train.steps,
        epochs=config.train.steps / batches.steps_per_epoch,
        tokens_per_parameter=trained_tokens / info.parameters,
        seconds_per_step=seconds_per_step,
        seconds=seconds,
        saved_step=saved_step,
        over=over,
        schedule_warning=schedule_warning(config.train.steps, config.schedule),
        measured_layers=tuple(candidate.model.n_layer for candidate in candidates),
    )


def _fits(info: Info, available: int | None) -> bool:
    """True if a step may fit in `available` bytes; its activations depend on the engine, its state does not."""
    if available is None:
        return True
    activations = info.memory_bytes["activations"]
    return sum(info.memory_bytes.values()) - activations < available and activations < _ACTIVATION_DIVISOR * available


def _measured_configs(config: Config, info: Info, vocab_size: int, runtime: Runtime) -> list[Config]:
    """The configs to measure: the config itself; if that is too large, the same with one and with two layers; or none.

    Layers take equally long, so the difference between two and one gives the time of each.
    """
    available = available_memory(runtime.device)
    state_bytes = sum(info.memory_bytes.values()) - info.memory_bytes["activations"]
    is_small = runtime.device.type != "cpu" or state_bytes <= _MAX_BYTES
    if is_small and _fits(info, available):
        return [config]
    shallow = [replace_keys(config, {"model.n_layer": n}) for n in (1, 2)]
    two_layers = describe(Path(), shallow[1], vocab_size)
    is_small = sum(two_layers.memory_bytes.values()) <= _MAX_SHALLOW_BYTES and config.model.n_layer > len(shallow)
    return shallow if is_small and _fits(two_layers, available) else []


def _batches(config: Config, corpus: Corpus, runtime: Runtime, note: Notify) -> Batches | ExampleBatches:
    if (batches := open_example_batches(config, corpus, runtime.device, note)) is not None:
        return batches
    tokens = corpus.train[: max(_MEASURED_TOKENS, config.model.context_length + 1)]
    return Batches.of(config, DeviceTokens(tokens, runtime.device))


def _measure(
    config: Config, batches: Batches | ExampleBatches, vocab_size: int, runtime: Runtime, note: Notify
) -> float:
    """Seconds of a training step, the first excluded: it also allocates and compiles."""
    state = TrainingState.initialize(config, vocab_size, runtime, note)
    first = time_steps(state, batches, config, runtime, [0])
    compiles = runtime.device.type == "cuda" or config.runtime.compile not in ("auto", False)
    if first > _LONG_STEP and not compiles:
        return first
    return time_steps(state, batches, config, runtime, range(_MEASURED_STEPS)) / _MEASURED_STEPS
