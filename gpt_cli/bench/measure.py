"""Training speed of a config on this machine: `gpt bench`.

What is measured: whole training steps as `gpt train` takes them (cutting the batch, forward, backward, clipping,
optimizer) on random tokens, which cost what text costs. What is not: reading and tokenizing the text, evaluations,
samples, checkpoints and the time that compiling takes.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

if sys.platform != "win32":
    import resource

from gpt_cli.bench.ceiling import matmul_ceiling
from gpt_cli.bench.profile import profile_step
from gpt_cli.config import Config
from gpt_cli.files.disk import format_size
from gpt_cli.model.count import flops_per_token, total_parameters
from gpt_cli.report.info import vocab_size_of
from gpt_cli.report.table import render_pairs, render_table
from gpt_cli.runtime.device import Runtime, open_runtime, wait_for
from gpt_cli.training.batches import Batches
from gpt_cli.training.loop import train_step
from gpt_cli.training.quickest import take_quickest
from gpt_cli.training.state import TrainingState

_WARM_UP, _FEWEST, _MOST = 3, 3, 200  # steps; the third may record what later ones replay
_PROFILED_STEPS = 3


@dataclass(frozen=True)
class Bench:
    """The speed of training a model here. `step_seconds` are the quartiles of `steps` measured steps."""

    device: str
    torch: str
    parameters: int
    vocab_size: int
    tokens_per_step: int
    steps: int
    step_seconds: tuple[float, float, float]
    tokens_per_second: float
    flops_per_token: int
    flops_per_second: float
    matmul_ceiling: float
    """FLOP/s of the fastest matrix product measured here, in the precision of the run."""
    utilisation: float
    """flops_per_second / matmul_ceiling."""
    peak_memory_bytes: int | None
    """Of the GPU's memory what tensors took; on a CPU the whole process, with Python and torch. None: not told here."""
    seconds_by_part: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """All of it by name."""
        return asdict(self)


def bench(config: Config, note: Callable[[str], None], seconds: float = 10.0) -> Bench:
    """Measure steps of `config` for about so many seconds, then their parts and the device's ceiling.

    Raises what `open_runtime` and reading the vocabulary raise.
    """
    runtime = open_runtime(config.runtime)
    vocab_size = vocab_size_of(config, note)
    batches = _random_batches(config, vocab_size, runtime)
    if runtime.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(runtime.device)
    state = TrainingState.fresh(config, vocab_size, runtime, note)
    take_quickest(state, batches, config, 0, runtime, note)
    times = _time_steps(config, state, batches, runtime, seconds)
    peak = _peak_memory(runtime.device)
    quartiles = statistics.quantiles(times, n=4, method="inclusive")
    plain = config.model_copy(update={"runtime": config.runtime.model_copy(update={"compile": False})})
    parts = profile_step(
        plain, TrainingState.fresh(plain, vocab_size, runtime, note), batches, runtime, _PROFILED_STEPS
    )
    rate = batches.tokens_per_step / quartiles[1]
    flops, ceiling = flops_per_token(config.model, vocab_size), matmul_ceiling(runtime)
    return Bench(
        device=runtime.describe(),
        torch=torch.__version__,
        parameters=total_parameters(config.model, vocab_size),
        vocab_size=vocab_size,
        tokens_per_step=batches.tokens_per_step,
        steps=len(times),
        step_seconds=(quartiles[0], quartiles[1], quartiles[2]),
        tokens_per_second=rate,
        flops_per_token=flops,
        flops_per_second=rate * flops,
        matmul_ceiling=ceiling,
        utilisation=rate * flops / ceiling,
        peak_memory_bytes=peak,
        seconds_by_part=parts,
    )


def render_bench(bench: Bench) -> str:
    """The figures as text: what was measured, then where the time goes."""
    low, median, high = (1e3 * seconds for seconds in bench.step_seconds)
    of_what = "of the GPU" if "cpu" not in bench.device else "of the process"
    facts = {
        "device": f"{bench.device}, torch {bench.torch}",
        "model": f"{bench.parameters:,} parameters, vocabulary of {bench.vocab_size:,}",
        "step": f"{median:,.1f} ms, half of them within {low:,.1f} and {high:,.1f}; {bench.steps} steps",
        "speed": f"{bench.tokens_per_second:,.0f} tokens/s, {bench.tokens_per_step:,} a step",
        "work": f"{_rate(bench.flops_per_second)}, {bench.flops_per_token:,} FLOPs a token",
        "ceiling": f"{_rate(bench.matmul_ceiling)} in the best matrix product measured here",
        "utilisation": f"{100 * bench.utilisation:.1f} % of the ceiling",
    }
    if bench.peak_memory_bytes is not None:
        facts["memory"] = f"{format_size(bench.peak_memory_bytes)} at most, {of_what}"
    total = sum(bench.seconds_by_part.values())
    rows = [(name, f"{1e3 * s:,.2f}", f"{100 * s / total:.1f}") for name, s in bench.seconds_by_part.items()]
    rows.append(("total, one by one", f"{1e3 * total:,.2f}", "100.0"))
    return f"{render_pairs(facts)}\n\n{render_table(rows, header=('part', 'ms', '%'))}"


def _random_batches(config: Config, vocab_size: int, runtime: Runtime) -> Batches:
    """Batches of a text of random tokens, four steps long."""
    length = 4 * config.train.batch_size * config.model.context_length + 1
    generator = torch.Generator().manual_seed(config.seed % 2**63)
    tokens = torch.randint(vocab_size, (length,), generator=generator, dtype=torch.int32)
    return Batches.of(config, tokens.to(runtime.device))


def _time_steps(
    config: Config, state: TrainingState, batches: Batches, runtime: Runtime, seconds: float
) -> list[float]:
    """Seconds of each of some training steps, after a first few that also allocate and compile."""
    times: list[float] = []
    started = time.perf_counter()
    for step in range(_WARM_UP + _MOST):
        if step == _WARM_UP:
            started = time.perf_counter()
        if len(times) >= _FEWEST and time.perf_counter() - started > seconds:
            break
        wait_for(runtime.device)
        before = time.perf_counter()
        state.way.taking(train_step)(state, batches.at(step), config, step, 1.0, runtime)
        wait_for(runtime.device)
        if step >= _WARM_UP:
            times.append(time.perf_counter() - before)
    return times


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":  # which the standard library cannot ask
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _rate(flops: float) -> str:
    return f"{flops / 1e12:,.2f} TFLOP/s" if flops >= 1e12 else f"{flops / 1e9:,.1f} GFLOP/s"
