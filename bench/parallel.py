"""Measure training by several processes: the same bits by any number of them, and their speed.

    python -m bench.parallel [--devices 1,2,4] [--steps 50] [--sums] [--config FILE]
    python -m bench.parallel --saves

Trains a small model on builtin:python-docs, or that of --config, with each engine, optimizer and precision, each number
of processes and each `parallel.shard` (`full` only with torch), with one thread a process, and prints tokens/s of the
whole run, or with --sums the SHA-256 of the weights without `full`. Exit code 1 if these differ in a row.

`--saves` prints, for torch and Muon, the time of a save (a run that saves after each step less one that does not, the
median of three pairs) and of a restart (a command that adds one step to a run). The record is bench/out/parallel.json.
"""

import argparse
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bench.common import gpt, printed, write_record
from gpt_cli.runtime.device import has_fast_bf16
from gpt_cli.terminal.table import render_table

SMALL = "model.n_layer=4 model.n_embd=128 model.n_head=4 model.context_length=64 train.batch_size=16"
RUN = "train.micro_batch_size=4 runtime.threads=1 runtime.device=cpu sample.every=null model.dropout=0.1 optim.ema=0.9"
Way = tuple[int, str]  # number of processes, parallel.shard


def train(way: Way, folder: str, name: str, settings: Sequence[str]) -> dict[str, Any]:
    """Train, or resume, a run; return its summary."""
    n, shard = way
    devices = () if n == 1 else ("--devices", str(n))
    run_dir = f"run_dir={folder}/{name}-{n}-{shard}"
    return printed(gpt("train", *settings, f"parallel.shard={shard}", run_dir, *devices, "--json"))


def measure_sums(ways: Sequence[Way], settings: Sequence[str], options: Namespace, folder: str) -> list[str]:
    """Print a row for each engine, optimizer and precision; return those whose weights differ."""
    rows, record, differ = [], {}, []
    precisions = ("bf16", "fp32") if has_fast_bf16(torch.device("cpu")) else ("fp32",)
    for engine, optimizer, precision in product(("native", "torch"), ("muon", "adamw"), precisions):
        facts = (f"runtime.engine={engine}", f"optim.name={optimizer}", f"runtime.precision={precision}")
        name = f"{engine}-{optimizer}-{precision}"
        offered = [way for way in ways if engine == "torch" or way[1] != "full"]
        summaries = {way: train(way, folder, name, [*settings, *facts]) for way in offered}
        sums = {way: summary["weights_sha256"] for way, summary in summaries.items()}
        speeds = {way: f"{summary['tokens_per_second']:,.0f}" for way, summary in summaries.items()}
        differ += [name] if len({sums[way] for way in offered if way[1] != "full"}) > 1 else []
        record[name] = {f"{n}, {shard}": (speeds[n, shard], sums[n, shard]) for n, shard in offered}
        cells = {way: sums[way][:6] for way in offered} if options.sums else speeds
        rows.append((engine, optimizer, precision, *(cells.get(way, "-") for way in ways)))
    header = ("engine", "optimizer", "precision", *(f"{n}, {shard}" for n, shard in ways))
    print(render_table(rows, header=header))
    figure = "SHA-256 of the weights" if options.sums else "tokens/s"
    print(f"\n{figure} by number of processes and parallel.shard; {options.steps} steps")
    write_record("parallel", None, record)
    return differ


def measure_saves(ways: Sequence[Way], settings: Sequence[str], options: Namespace, folder: str) -> None:
    """Print the seconds of a save and of a restart."""
    rows = []
    settings = [*settings, "runtime.engine=torch", "eval.every=null"]
    for way in ways:

        def seconds(name: str, every: str, way: Way = way) -> float:
            return float(train(way, folder, name, [*settings, f"checkpoint.every={every}"])["train_seconds"])

        saves = [seconds(f"often{pair}", "1") - seconds(f"seldom{pair}", "null") for pair in range(3)]
        started = time.perf_counter()
        train(way, folder, "seldom2", [*settings, "checkpoint.every=null", f"train.steps={options.steps + 1}"])
        restart = time.perf_counter() - started
        rows.append((*way, statistics.median(saves) / (options.steps - 1), restart))
    print(render_table(rows, header=("processes", "shard", "s a save", "s a restart")))
    write_record("parallel", ["saves"], {"rows": rows})


def main() -> None:
    """Measure, print a table, write a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="1,2,4")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--sums", action="store_true", help="print the SHA-256 of each in place of tokens/s")
    parser.add_argument("--saves", action="store_true", help="measure saves and restarts")
    options = parser.parse_args()
    if options.saves and options.steps < 2:
        parser.error("--saves needs --steps of at least 2: the last step is saved in any run")
    numbers = map(int, options.devices.split(","))
    shards = ("none", "optimizer") if options.sums else ("none", "optimizer", "full")
    ways = [(n, shard) for n in numbers for shard in shards if n > 1 or shard == "none"]
    model = ["--config", str(options.config.resolve())] if options.config else ["builtin:python-docs", *SMALL.split()]
    settings = [*model, *RUN.split(), f"train.steps={options.steps}", f"eval.every={options.steps}"]
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        if options.saves:
            measure_saves(ways, settings, options, folder)
        else:
            differ = measure_sums(ways, settings, options, folder)
            sys.exit(f"weights differ: {', '.join(differ)}" if differ else 0)


if __name__ == "__main__":
    main()
