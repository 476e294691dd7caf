"""The time until `gpt train` trains, beside a bare `import torch`; and the share of a run beside its steps.

    python -m bench.start                          the start of configs/quickstart.yaml, with warm caches
    python -m bench.start --config FILE [section.key=value ...] --rounds 9
    python -m bench.start --share                  that of its evaluations, samples, saves and logs instead

A start is the time from the shell until the first step begins: imports, text, model, the evaluation and the sample
before it. `python -c "import torch"` is a whole process, too; both are measured in turn, and the ratio is that of the
medians. Caches are those of the user, filled by a run that is not counted. Exit code 1 where a figure is above its
bound (`--most` is another one for the ratio).
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpt_cli.terminal.table import render_table

ROOT = Path(__file__).resolve().parents[1]
MAX_IMPORTS, MAX_SHARE = 1.5, 0.05
TO_FIRST_STEP = """
import os, sys, time
from contextlib import contextmanager
from gpt_cli.cli.verbs import train as verb
from gpt_cli.cli.main import main

gc_paused = verb.gc_paused

def train_step(*arguments):
    print(time.time(), flush=True)
    os._exit(0)

@contextmanager
def gc_paused_but_for_the_step():
    with gc_paused():
        yield
    from gpt_cli.training import loop
    loop.train_step = train_step

verb.gc_paused = gc_paused_but_for_the_step
main(sys.argv[1:])
"""


def start_seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """Seconds from the shell to the first step of a new run."""
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        command = [sys.executable, "-c", TO_FIRST_STEP, "train", *arguments, f"run_dir={folder}/run"]
        started = time.time()
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return float(done.stdout.split()[-1]) - started


def import_seconds(environment: dict[str, str]) -> float:
    """Seconds of a whole process that imports torch and does nothing."""
    started = time.time()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, env=environment)
    return time.time() - started


def compare_start(arguments: list[str], rounds: int, most: float = MAX_IMPORTS) -> float:
    """The imports of torch that a start takes, printed with the median seconds of both, and those asked for."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start_seconds(arguments, environment)
    pairs = [(start_seconds(arguments, environment), import_seconds(environment)) for _ in range(rounds)]
    start, torch = (statistics.median(times) for times in zip(*pairs, strict=True))
    rows = [
        ("gpt train, to its first step", round(start, 2), round(start / torch, 2)),
        ("import torch", round(torch, 2), 1.0),
    ]
    print(render_table(rows, header=("what", "seconds", f"imports of torch (at most {most:g})")))
    return start / torch


def measure_share(config_file: Path, overrides: list[str]) -> float:
    """Train, and print the share of each thing that is not training: of the whole time, that of all together."""
    from gpt_cli.config import load_config
    from gpt_cli.run import checkpoint
    from gpt_cli.training import loop
    from gpt_cli.training.console import Console
    from gpt_cli.training.metrics_logger import MetricsLogger

    seconds: dict[str, list[float]] = {"evaluation": [], "sampling": [], "saving": [], "logging": []}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                seconds[name].append(time.perf_counter() - started)

        return call

    places: list[tuple[str, Any, str]] = [
        *(("evaluation", loop, "evaluate"), ("sampling", loop, "sample_text")),
        *(("saving", checkpoint, "save"), ("saving", checkpoint, "prune"), ("saving", MetricsLogger, "flush")),
        *(
            ("logging", MetricsLogger, "step"),
            ("logging", MetricsLogger, "evaluation"),
            ("logging", MetricsLogger, "sample"),
        ),
    ]
    for name, owner, function in places:
        setattr(owner, function, timed(name, getattr(owner, function)))
    with tempfile.TemporaryDirectory(prefix="share-", dir=Path()) as folder:
        config = load_config(config_file, [*overrides, f"run_dir={folder}/run"])
        summary = loop.train(config, Console(lambda text: None))
    total = summary.train_seconds
    for name, times in seconds.items():
        print(f"{name:10} {len(times):5} times  {sum(times):6.2f} s  {100 * sum(times) / total:5.2f} %")
    share = sum(map(sum, seconds.values())) / total
    print(f"together {100 * share:.2f} % of {total:.1f} s (bound {100 * MAX_SHARE:.0f} %)")
    return share


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description="How soon a run trains, and what it does beside that.")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "quickstart.yaml", metavar="FILE")
    parser.add_argument("--share", action="store_true", help="measure what is not training instead")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each kind (default: 5)")
    parser.add_argument("--most", type=float, default=MAX_IMPORTS, help=f"imports of torch (default: {MAX_IMPORTS})")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    arguments = parser.parse_args()
    if arguments.share:
        good = measure_share(arguments.config, arguments.overrides) < MAX_SHARE
    else:
        imports = compare_start(
            ["--config", str(arguments.config), *arguments.overrides], arguments.rounds, arguments.most
        )
        good = imports < arguments.most
    sys.exit(not good)


if __name__ == "__main__":
    main()
