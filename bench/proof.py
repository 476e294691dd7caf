"""The time of the checks of compiled code at a start: that it is what was compiled, and computes what torch does.

    python -m bench.proof                          for the model of configs/quickstart.yaml, with a warm cache
    python -m bench.proof --config FILE [section.key=value ...] --rounds 20

Each round is a new process that does what a start does: it builds the model, reads the library from the cache and
compares its SHA-256, loads it, and proves it on a tiny batch. Printed are the least and the median of the rounds; on a
machine with other work the least is what the check takes. Exit code 1 where a least is above its bound.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from gpt_cli.terminal.table import render_table

ROOT = Path(__file__).resolve().parents[1]
BOUNDS = {"SHA-256 compared": 5.0, "found, compared, loaded": None, "proved": 20.0}
ONE_START = """
import json, sys, time
from pathlib import Path
from gpt_cli.config import load_config
from gpt_cli.model.gpt import GPT
from gpt_cli.cpu.common import kernel
from gpt_cli.runtime.device import setup_runtime
from gpt_cli.cpu.train.build_settings import KERNELS
from gpt_cli.training.native_gradcheck import check_native_gradients
from gpt_cli.cpu.train.train_bindings import NativeLibrary
import torch

config = load_config(Path(sys.argv[1]), sys.argv[2:])
runtime = setup_runtime(config.runtime)
model = GPT(config.model, 65)
ours = KERNELS[runtime.matmul_dtype == torch.bfloat16]
name = f"{ours.name}-{kernel.key_of(ours, kernel.Compiler.find())}"
with kernel.Store.create(kernel.store_path()) as store:
    if store.record(name) is None:
        kernel.load(ours, print)
    started = time.perf_counter()
    assert store.read(name) is not None
    compared = time.perf_counter()
found = time.perf_counter()
kernel.load(ours, sys.exit)
loaded = time.perf_counter()
library = NativeLibrary.load(runtime.matmul_dtype)
proving = time.perf_counter()
assert check_native_gradients(library, config.model, runtime.threads) is None
proved = time.perf_counter()
print(json.dumps([compared - started, loaded - found, proved - proving]))
"""


def one_start(arguments: list[str]) -> list[float]:
    """Milliseconds of each check in a new process."""
    command = [sys.executable, "-c", ONE_START, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return [1000 * seconds for seconds in json.loads(done.stdout.splitlines()[-1])]


def compare(arguments: list[str], rounds: int) -> bool:
    """Print what each check takes; whether all keep their bounds."""
    one_start(arguments)
    rows, good = [], True
    for (name, bound), times in zip(
        BOUNDS.items(), zip(*(one_start(arguments) for _ in range(rounds)), strict=True), strict=True
    ):
        least = min(times)
        rows.append((name, f"{least:.2f}", f"{statistics.median(times):.2f}", "" if bound is None else f"{bound:g}"))
        good = good and (bound is None or least < bound)
    print(render_table(rows, header=("check", "least ms", "median ms", "at most")))
    return good


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description="What the checks of compiled code take of a start.")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "quickstart.yaml", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=10, help="starts (default: 10)")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    arguments = parser.parse_args()
    sys.exit(not compare([str(arguments.config), *arguments.overrides], arguments.rounds))


if __name__ == "__main__":
    main()
