"""Training speed of a config on this machine: `gpt bench`.

What is measured: whole training steps as `gpt train` takes them (cutting the batch, forward, backward, clipping,
optimizer, all micro-batches) on random tokens, which cost what text costs. What is not: reading and tokenizing the
text, evaluations, samples, checkpoints and, but for the first step, the time that compiling takes.
"""

import statistics
import sys
from dataclasses import dataclass

import numpy as np
import torch

if sys.platform != "win32":
    import resource

from gpt_cli.bench.peak_flops import peak_matmul_flops
from gpt_cli.bench.profile import engine_name, profile_step
from gpt_cli.config import Config
from gpt_cli.errors import Notify, RequestError
from gpt_cli.model.sizing import flops_per_token, num_parameters
from gpt_cli.run.model_info import vocab_size_of
from gpt_cli.runtime.device import Runtime, setup_runtime
from gpt_cli.search.timing import time_steps
from gpt_cli.terminal.table import render_pairs, render_table
from gpt_cli.terminal.words import format_size
from gpt_cli.training.batches import Batches
from gpt_cli.training.device_tokens import DeviceTokens
from gpt_cli.training.state import TrainingState

_WARM_UP, _MAX = 3, 200  # steps
_SPANS = 10  # a device is waited for at the end of each, not of each step
_PROFILED_STEPS = 3
_CEILING_SECONDS = 3.0  # at most

_OTHERWISE = "gpt train --config FILE --dry-run times steps"


@dataclass(frozen=True)
class Bench:
    """The speed of training a model here.

    `step_seconds` are the quartiles of spans of steps, `steps` in all.
    """

    device: str
    engine: str
    """The engine of losses and gradients: "C", "torch, eager" or "torch, compiled"."""
    torch: str
    parameters: int
    vocab_size: int
    tokens_per_step: int
    steps: int
    step_seconds: tuple[float, float, float]
    first_step_seconds: float
    """Seconds of the first step, which also allocates and compiles."""
    tokens_per_second: float
    flops_per_token: int
    flops_per_second: float
    matmul_ceiling: float
    """FLOP/s of the fastest matrix product measured here, in the precision of the run."""
    utilisation: float
    """flops_per_second / matmul_ceiling."""
    peak_memory_bytes: int | None
    """Peak bytes of tensors on a GPU; on a CPU of the whole process, with Python and torch. None: unknown."""
    seconds_by_part: dict[str, float]


def bench(config: Config, note: Notify, seconds: float = 10.0) -> Bench:
    """Measure steps of `config` for about this many seconds, then their parts and the device's ceiling.

    Raises what `setup_runtime` and reading the vocabulary raise.
    """
    if config.task.kind != "language":
        raise RequestError(f"gpt bench predicts tokens, not {config.task.kind}", hint=_OTHERWISE)
    if config.lora.rank is not None:
        raise RequestError("gpt bench trains all parameters, not lora.rank", hint=_OTHERWISE)
    runtime = setup_runtime(config.runtime)
    vocab_size = vocab_size_of(config, note)
    batches = random_batches(config, vocab_size, runtime)
    if runtime.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(runtime.device)
    state = TrainingState.initialize(config, vocab_size, runtime, note)
    first, times, steps = _time_steps(config, state, batches, runtime, seconds)
    peak = _peak_memory(runtime.device)
    quartiles = statistics.quantiles(times, n=4, method="inclusive")
    parts = profile_step(config, state, batches, runtime, _PROFILED_STEPS)
    rate = batches.tokens_per_step / quartiles[1]
    flops = flops_per_token(config.model, vocab_size)
    ceiling = peak_matmul_flops(runtime, min(_CEILING_SECONDS, seconds))
    return Bench(
        device=runtime.describe(),
        engine=engine_name(state.engine),
        torch=torch.__version__,
        parameters=num_parameters(config.model, vocab_size),
        vocab_size=vocab_size,
        tokens_per_step=batches.tokens_per_step,
        steps=steps,
        step_seconds=(quartiles[0], quartiles[1], quartiles[2]),
        first_step_seconds=first,
        tokens_per_second=rate,
        flops_per_token=flops,
        flops_per_second=rate * flops,
        matmul_ceiling=ceiling,
        utilisation=rate * flops / ceiling,
        peak_memory_bytes=peak,
        seconds_by_part=parts,
    )


def render_bench(bench: Bench) -> str:
    low, median, high = (1e3 * seconds for seconds in bench.step_seconds)
    of_what = "of the GPU" if "cpu" not in bench.device else "of the process"
    pairs = {
        "device": f"{bench.device}, torch {bench.torch}",
        "engine": bench.engine,
        "model": f"{bench.parameters:,} parameters, vocabulary of {bench.vocab_size:,}",
        "step": f"{median:,.1f} ms, IQR {low:,.1f} to {high:,.1f}; {bench.steps} steps",
        "speed": f"{bench.tokens_per_second:,.0f} tokens/s, {bench.tokens_per_step:,} a step",
        "work": f"{_rate(bench.flops_per_second)}, {bench.flops_per_token:,} FLOPs a token",
        "peak matmul": f"{_rate(bench.matmul_ceiling)} in the best matrix product measured here",
        "MFU": f"{100 * bench.utilisation:.1f} % of that peak",
    }
    if bench.peak_memory_bytes is not None:
        pairs["memory"] = f"{format_size(bench.peak_memory_bytes)} at most, {of_what}"
    total = sum(bench.seconds_by_part.values())
    rows = [(name, f"{1e3 * s:,.2f}", f"{100 * s / total:.1f}") for name, s in bench.seconds_by_part.items()]
    rows.append(("total, one by one", f"{1e3 * total:,.2f}", "100.0"))
    return f"{render_pairs(pairs)}\n\n{render_table(rows, header=('part', 'ms', '%'))}"


def random_batches(config: Config, vocab_size: int, runtime: Runtime) -> Batches:
    """Batches of a text of random tokens, four steps long."""
    length = 4 * config.train.batch_size * config.model.context_length + 1
    ids = np.random.default_rng(config.seed).integers(vocab_size, size=length, dtype=np.uint32)
    return Batches.of(config, DeviceTokens(ids, runtime.device))


def _time_steps(
    config: Config, state: TrainingState, batches: Batches, runtime: Runtime, seconds: float
) -> tuple[float, list[float], int]:
    """Seconds of the first training step, seconds per step of several spans of steps after it, and how many steps."""

    def span(first: int, steps: int) -> float:
        return time_steps(state, batches, config, runtime, range(first, first + steps)) / steps

    first = span(0, 1)
    usual = span(1, _WARM_UP - 1)
    steps = max(1, min(_MAX, int(seconds / usual)) // _SPANS)
    spans = max(3, min(_SPANS, int(seconds / (steps * usual))))
    return first, [span(_WARM_UP + i * steps, steps) for i in range(spans)], spans * steps


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":  # which the standard library cannot ask
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _rate(flops: float) -> str:
    return f"{flops / 1e12:,.2f} TFLOP/s" if flops >= 1e12 else f"{flops / 1e9:,.1f} GFLOP/s"
