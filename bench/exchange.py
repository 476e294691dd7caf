"""The share of a step that processes spend on exchanging gradients, which is all that overlapping it could save.

    python -m bench.exchange                                 two processes, each engine, 0.9 million weights
    python -m bench.exchange --devices 4 model.n_layer=6 model.n_embd=384

The processes begin each part of a step together: computing the gradients of their own micro-batches, exchanging them,
updating. Of each part the fastest of all steps counts: other programs only make it slower. An exchange in pieces could
run beside the backward pass of the last micro-batch: about two thirds of what `one` of them takes.
"""

import argparse
import os
import subprocess
import sys
import time
from typing import Any

import torch

from gpt_cli.config import parse_config
from gpt_cli.distributed.reduce import combine, contiguous_micro_batches, partial_sums
from gpt_cli.distributed.world import joined
from gpt_cli.runtime.device import setup_runtime
from gpt_cli.terminal.table import render_table
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import optimizer_step

CONFIG = """
model: {n_layer: 4, n_embd: 128, n_head: 4, context_length: 64}
train: {batch_size: 16, micro_batch_size: 4}
runtime: {device: cpu, threads: 1}
"""
VOCABULARY = 256


def measure(engine: str, overrides: list[str], steps: int) -> tuple[str, ...]:
    """The row of an engine: seconds of each part, the least of all steps."""
    config = parse_config(CONFIG, "bench", [f"runtime.engine={engine}", *overrides])
    runtime = setup_runtime(config.runtime)
    world, train = runtime.world, config.train
    state = TrainingState.initialize(config, VOCABULARY, runtime, print)
    trained = [parameter for parameter in state.parameters if parameter.requires_grad]
    n = train.batch_size // train.sequences_per_forward
    leaves = contiguous_micro_batches(world, n, world.rank)
    tokens = torch.randint(VOCABULARY, (train.sequences_per_forward, config.model.context_length))
    least = dict.fromkeys(("own", "one", "exchange", "update"), float("inf"))

    def leaf_gradients(leaf: tuple[int, int], keep: bool) -> Any:
        if leaf[1] - leaf[0] > 1:
            return None
        start = time.perf_counter()
        state.engine.forward_backward(tokens, tokens, n, leaf[0])
        least["one"] = min(least["one"], time.perf_counter() - start)
        gradients = [parameter.grad for parameter in trained]
        if keep and state.engine.reuses_gradients:  # as in training
            gradients = [gradient.clone() for gradient in gradients if gradient is not None]
        state.optimizer.zero_grad()
        return gradients

    for step in range(steps):
        world.wait()
        times = [time.perf_counter()]
        sums = partial_sums(world, n, leaf_gradients)
        times.append(time.perf_counter())
        world.wait()
        times.append(time.perf_counter())
        whole = combine(world, n, sums)
        times.append(time.perf_counter())
        for parameter, gradient in zip(trained, whole, strict=True):
            parameter.grad = gradient
        optimizer_step(state, config.optim, step, 1.0)
        state.optimizer.zero_grad()
        times.append(time.perf_counter())
        for name, i in (("own", 0), ("exchange", 2), ("update", 3)):
            least[name] = min(least[name], times[i + 1] - times[i])
    whole_step = least["own"] + least["exchange"] + least["update"]
    sent = 2 * (world.size - 1) / world.size * sum(parameter.nbytes for parameter in trained)
    return (
        engine,
        f"{sent / 1e6:.1f} MB",
        f"{leaves[1] - leaves[0]}",
        *(f"{1e3 * least[name]:.1f}" for name in least),
        f"{100 * least['exchange'] / whole_step:.1f} %",
    )


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.exchange", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    if "WORLD_SIZE" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.devices}", "-m"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run([sys.executable, *launcher, "bench.exchange", *sys.argv[1:]], env=environment).returncode
    with joined() as world:
        rows = [measure(engine, arguments.overrides, arguments.steps) for engine in ("native", "torch")]
    if world.is_main:
        parts = ("all, ms", "one", "exchange", "update", "exchange is")
        print(render_table(rows, header=("engine", "sends", "micro-batches", *parts)))
        print(f"\n{world.size} processes, one thread each, {os.cpu_count()} cores, torch {torch.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
