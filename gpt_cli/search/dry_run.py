"""Plan a run without training it: `gpt train --dry-run`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpt_cli.config import Config
from gpt_cli.corpus.prepare import LazyCorpus, open_lazy
from gpt_cli.cpu.common.kernel import no_build_cache
from gpt_cli.errors import Notify
from gpt_cli.run.model_info import Info, describe
from gpt_cli.runtime.device import Runtime, setup_runtime
from gpt_cli.runtime.oom import available_memory
from gpt_cli.search.timing import time_steps
from gpt_cli.terminal.progress import stage_progress
from gpt_cli.training.batches import Batches
from gpt_cli.training.device_tokens import DeviceTokens
from gpt_cli.training.example_batches import ExampleBatches
from gpt_cli.training.example_rows import ExampleRows
from gpt_cli.training.labelled_rows import LabelledRows, with_labels
from gpt_cli.training.state import TrainingState

_MEASURED_STEPS = 3
_LONG = 10.0  # seconds of a first step, after which it is the measure: nobody waits for three more
_LEAST_SHARE = 4  # of the activations estimated for torch, the C engine keeps this part at least
_MOST_BYTES = 1 << 32  # of weights, gradients and optimizer on a CPU: of a larger model few layers are measured
_MOST_BYTES_OF_FEW = 150_000_000
_MEASURED_TOKENS = 1 << 20  # of the training split, which the measured steps are taken from


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
    """None, as `seconds`: not measured, since it takes more memory than there is."""
    seconds: float | None
    measured_layers: tuple[int, ...] = ()
    """Layers of the models that were measured: of a large one a few, from which the time of all is worked out."""

    def to_json(self) -> dict[str, Any]:
        rest = asdict(self)
        info: dict[str, Any] = rest.pop("info")
        return info | rest


def plan(config: Config, note: Notify) -> Plan:
    """Work out what training `config` would be; the time is measured over a few steps. Writes nothing."""
    runtime = setup_runtime(config.runtime)
    with stage_progress() as progress:
        corpus = open_lazy(config.data, config.tokenizer, note=note, progress=progress)
    config = with_labels(config, corpus)
    vocab_size = corpus.tokenizer.vocab_size
    train_tokens, val_tokens = (corpus.facts[split].tokens for split in ("train", "val"))
    batches = _batches(config, corpus, runtime, note)
    info = describe(Path(config.run_dir or ""), config, vocab_size)
    seconds_per_step = seconds = None
    if tried := _tried(config, info, vocab_size, runtime):
        times = [_measure(one, batches, vocab_size, runtime, note) for one in tried]
        layers = config.model.n_layer - tried[0].model.n_layer
        seconds_per_step = times[0] + layers * max(0.0, times[-1] - times[0])
        # A forward pass is about a third of a training step.
        seconds_per_evaluation = seconds_per_step / 3 * val_tokens / batches.tokens_per_step
        n_evaluation = 1 + (config.train.steps // config.eval.every if config.eval.every is not None else 0)
        seconds = config.train.steps * seconds_per_step + n_evaluation * seconds_per_evaluation
    trained_tokens = config.train.steps * batches.tokens_per_step
    labels = config.task.labels
    micro, context = config.train.sequences_per_forward, config.model.context_length
    return Plan(
        info=info,
        device=runtime.describe(),
        input_shape=(micro, context),
        logits_shape=(micro, context, vocab_size) if labels is None else (micro, 1, len(labels)),
        train_tokens=train_tokens,
        val_tokens=val_tokens,
        steps=config.train.steps,
        epochs=trained_tokens / train_tokens,
        tokens_per_parameter=trained_tokens / info.parameters,
        seconds_per_step=seconds_per_step,
        seconds=seconds,
        measured_layers=tuple(one.model.n_layer for one in tried),
    )


def _fits(info: Info, available: int | None) -> bool:
    """True if a step can be tried with so many bytes: what it keeps depends on the engine, its state does not."""
    if available is None:
        return True
    activations = info.memory_bytes["activations"]
    return sum(info.memory_bytes.values()) - activations < available and activations < _LEAST_SHARE * available


def _tried(config: Config, info: Info, vocab_size: int, runtime: Runtime) -> list[Config]:
    """The models to measure: the config's; of one that is large for a CPU, one with a layer and one with two; or none.

    Layers take equally long, so what two take more than one tells what all take.
    """
    available = available_memory(runtime.device)
    kept = sum(info.memory_bytes.values()) - info.memory_bytes["activations"]
    is_small = runtime.device.type != "cpu" or kept <= _MOST_BYTES
    if is_small and _fits(info, available):
        return [config]
    few = [config.model_copy(update={"model": config.model.model_copy(update={"n_layer": n})}) for n in (1, 2)]
    of_two = describe(Path(), few[1], vocab_size)
    small = sum(of_two.memory_bytes.values()) <= _MOST_BYTES_OF_FEW and config.model.n_layer > len(few)
    return few if small and _fits(of_two, available) else []


def _batches(config: Config, corpus: LazyCorpus, runtime: Runtime, note: Notify) -> Batches | ExampleBatches:
    if corpus.labelled:
        texts = LabelledRows.of(config, corpus.labelled["train"], "training", note)
        return ExampleBatches.of(config, texts, runtime.device)
    if corpus.examples:
        rows = ExampleRows.of(config, corpus.examples["train"], "training", note)
        return ExampleBatches.of(config, rows, runtime.device)
    some = corpus.read("train", 0, max(_MEASURED_TOKENS, config.model.context_length + 1))
    return Batches.of(config, DeviceTokens(some, runtime.device))


def _measure(
    config: Config, batches: Batches | ExampleBatches, vocab_size: int, runtime: Runtime, note: Notify
) -> float:
    """Seconds of a training step, after a first one that also allocates and compiles."""
    with no_build_cache():
        state = TrainingState.initialize(config, vocab_size, runtime, note)
    first = time_steps(state, batches, config, runtime, [0])
    if first > _LONG and runtime.device.type != "cuda":
        return first
    return time_steps(state, batches, config, runtime, range(_MEASURED_STEPS)) / _MEASURED_STEPS
