"""Parts that the benchmarks share: processes, rounds in turn, an untrained run, tables and records."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from gpt_cli.cores import usable_cores
from gpt_cli.runtime.processor import processor_name
from gpt_cli.terminal.table import render_table

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "bench" / "out"
Figure = TypeVar("Figure")


def gpt(*arguments: str) -> list[str]:
    """Return the command line of a `gpt` command, which need not be installed."""
    return [sys.executable, "-m", "gpt_cli", *arguments]


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a process that imports this checkout."""
    search_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": search_path, **changes}


def run(command: Sequence[str], cwd: str | Path = ROOT, env: Mapping[str, str] | None = None) -> tuple[str, float]:
    """Run a command; return its standard output and its seconds. Exit if it fails."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env=env or environment(), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout, seconds


def printed(command: Sequence[str], cwd: str | Path = ROOT, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a command; return the JSON object that it prints, with its `process_seconds`."""
    out, seconds = run(command, cwd, env)
    return {**json.loads(out[out.index("{") :]), "process_seconds": seconds}


def in_turn(ways: Mapping[str, Callable[[], Figure]], rounds: int, *, warm_up: bool = False) -> dict[str, list[Figure]]:
    """Measure all ways once per round, so that other load on the machine meets each of them."""
    figures: dict[str, list[Figure]] = {name: [] for name in ways}
    for round_ in range(-warm_up, rounds):
        for name, measure in ways.items():
            time.sleep(0.1)  # until the previous way's threads, which spin while they wait, are asleep
            figure = measure()
            if round_ >= 0:
                figures[name].append(figure)
    return figures


def medians(figures: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each list."""
    return {name: statistics.median(values) for name, values in figures.items()}


def make_run(path: Path, **shape: Any) -> Path:
    """Create a run of an untrained model with 65 characters."""
    import torch

    from gpt_cli.config import Config, ModelConfig
    from gpt_cli.model.gpt import GPT
    from gpt_cli.run.directory import create_imported_run
    from gpt_cli.tokenizer import CharTokenizer

    torch.manual_seed(0)
    model = ModelConfig(zero_init=False, **shape)
    tokenizer = CharTokenizer("".join(map(chr, range(32, 97))))
    weights = GPT(model, tokenizer.vocab_size).state_dict()
    create_imported_run(Config(model=model, run_dir=str(path)), tokenizer, weights, "bench")
    return path


def show(title: str, unit: str, figures: dict[str, float]) -> dict[str, float]:
    """Print figures, and their ratios to the first."""
    first = next(iter(figures.values()))
    rows = [(name, number(value), f"{value / first:.2f}") for name, value in figures.items()]
    print(f"\n{render_table(rows, header=(title, unit, 'ratio'), right=(1, 2))}", flush=True)
    return figures


def number(value: float) -> str:
    """Format a figure: 1,234 or 1.23."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def write_record(name: str, only: Sequence[str] | None, figures: Mapping[str, Any]) -> None:
    """Print the machine, and write it with the figures to bench/out/NAME.json; of some parts, to NAME-PART.json."""
    versions = f"torch {version('torch')}, Python {platform.python_version()}"
    machine = f"{len(usable_cores())} cores of {processor_name()}, {versions}"
    file = OUT / f"{'-'.join([name, *(only or ())])}.json"
    OUT.mkdir(parents=True, exist_ok=True)
    record = {"machine": machine, "load": os.getloadavg(), **figures}
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\n{machine}; record: {file}")
