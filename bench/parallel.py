"""The same bits by any number of processes, and their speed: `python -m bench.parallel [--devices 1,2,4] [--steps 50]`.

Trains a small model on builtin:python-docs by each engine, optimizer and precision there is, once for each number of
processes and each `parallel.shard` (`full` by torch alone), and prints the weights' SHA-256 (which must not differ in a
row) and tokens/s of the whole run, or with --sums the SHA-256 of each. Each process computes with one thread. Exits
with 1 if a row has two sums. `--config FILE` measures another model; `--saves` prints, for the torch engine and Muon,
what a save takes (a run that saves after each step less one that does not, the median of three pairs) and a restart
(the command that adds a step to a run, from its start to its end).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from gpt_cli.runtime.device import has_fast_bf16
from gpt_cli.terminal.table import render_table

SMALL = "model.n_layer=4 model.n_embd=128 model.n_head=4 model.context_length=64 train.batch_size=16"
ROWS = [
    (engine, optimizer, precision)
    for engine in ("native", "torch")
    for optimizer in ("muon", "adamw")
    for precision in ("bf16", "fp32")
    if precision == "fp32" or has_fast_bf16(torch.device("cpu"))
]


def train(devices: int, overrides: list[str]) -> dict[str, Any] | None:
    """The summary of a run by so many processes; None for one that is not offered."""
    if {"runtime.engine=native", "parallel.shard=full"} <= set(overrides):
        return None
    command = [sys.executable, "-m", "gpt_cli", "train", *overrides, "--json"]
    command += [] if devices == 1 else ["--devices", str(devices)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def measure_saves(ways: list[tuple[int, str]], overrides: list[str], steps: int, folder: str) -> str:
    """A table of the seconds of a save and of a restart."""
    rows = []
    for n, shard in ways:
        settings = [*overrides, f"parallel.shard={shard}", "runtime.engine=torch", "eval.every=null"]

        def seconds(name: str, every: str, n: int = n, shard: str = shard, settings: list[str] = settings) -> float:
            summary = train(n, [*settings, f"run_dir={folder}/{name}-{n}-{shard}", f"checkpoint.every={every}"])
            assert summary is not None  # torch knows every shard
            return float(summary["train_seconds"])

        saves = [seconds(f"often{pair}", "1") - seconds(f"seldom{pair}", "null") for pair in range(3)]
        last = [f"run_dir={folder}/seldom2-{n}-{shard}", "checkpoint.every=null", f"train.steps={steps + 1}"]
        started = time.perf_counter()
        train(n, [*settings, *last])
        restart = time.perf_counter() - started
        rows.append((str(n), shard, f"{statistics.median(saves) / (steps - 1):.3f}", f"{restart:.1f}"))
    return render_table(rows, header=("processes", "shard", "s a save", "s a restart"))


def shown(summary: dict[str, Any] | None, *, as_sum: bool) -> str:
    """The cell of a run."""
    if summary is None:
        return "-"
    return summary["weights_sha256"][:6] if as_sum else f"{summary['tokens_per_second']:,.0f}"


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.parallel", description=__doc__)
    parser.add_argument("--devices", default="1,2,4")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--sums", action="store_true", help="print the SHA-256 of each in place of tokens/s")
    parser.add_argument("--saves", action="store_true", help="print what saves and restarts take")
    arguments = parser.parse_args()
    if arguments.saves and arguments.steps < 2:
        parser.error("--saves needs --steps of at least 2: the last step is saved in any run")
    numbers = [int(number) for number in arguments.devices.split(",")]
    model = SMALL.split() if arguments.config is None else ["--config", str(arguments.config)]
    source = ["builtin:python-docs"] if arguments.config is None else []
    overrides = [
        f"train.steps={arguments.steps}",
        "train.micro_batch_size=4",
        "runtime.threads=1",
        "runtime.device=cpu",
    ]
    overrides += ["sample.every=null", "model.dropout=0.1", "optim.ema=0.9", f"eval.every={arguments.steps}"]
    ways = [(n, shard) for n in numbers for shard in ("none", "optimizer", "full") if n > 1 or shard == "none"]
    rows, differ = [], False
    with tempfile.TemporaryDirectory(prefix="parallel-") as folder:
        if arguments.saves:
            print(measure_saves(ways, [*source, *model, *overrides], arguments.steps, folder))
            return 0
        for engine, optimizer, precision in ROWS:
            facts = [f"runtime.engine={engine}", f"optim.name={optimizer}", f"runtime.precision={precision}"]
            name = "-".join((engine, optimizer, precision))
            facts_of_run = [*source, *model, *overrides, *facts]
            summaries = [
                train(n, [*facts_of_run, f"parallel.shard={shard}", f"run_dir={folder}/{name}-{n}-{shard}"])
                for n, shard in ways
            ]
            sums = {summary["weights_sha256"] for summary in summaries if summary}
            differ = differ or len(sums) > 1
            cells = [shown(summary, as_sum=arguments.sums) for summary in summaries]
            weights = "DIFFER" if len(sums) > 1 else sums.pop()[:16]
            rows.append((engine, optimizer, precision, *([] if arguments.sums else [weights]), *cells))
    columns = ("engine", "optimizer", "precision", *([] if arguments.sums else ["weights"]))
    print(render_table(rows, header=(*columns, *(f"{n}, {shard}" for n, shard in ways)), width=None))
    figure = "SHA-256 of the weights" if arguments.sums else "tokens/s"
    print(f"\n{figure} by so many processes and parallel.shard; ", end="")
    print(f"{os.cpu_count()} cores, one thread a process, torch {torch.__version__}, {arguments.steps} steps")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
