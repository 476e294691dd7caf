"""The share of training that saving takes: `python -m bench.saving [CONFIG] [section.key=value ...]`, else quickstart.

Trains CONFIG in a temporary directory below the current one, so on its disk, as `gpt train` does, and takes the time
of each save: flushing the logs, packing and checking the tensors, writing, flushing and summing the files, and
removing the checkpoints that are no longer kept. The share is that of the whole training time of the same run.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpt_cli.config import load_config
from gpt_cli.run import checkpoint
from gpt_cli.training import loop
from gpt_cli.training.console import Console
from gpt_cli.training.metrics_logger import MetricsLogger


def main(config_file: Path, overrides: list[str]) -> None:
    """Train, and print what saving took."""
    seconds: dict[str, list[float]] = {"save": [], "prune": [], "flush": []}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments)
            seconds[name].append(time.perf_counter() - started)
            return result

        return call

    checkpoint.save = timed("save", checkpoint.save)
    checkpoint.prune = timed("prune", checkpoint.prune)
    MetricsLogger.flush = timed("flush", MetricsLogger.flush)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(prefix="saving-", dir=Path()) as folder:
        config = load_config(config_file, [f"run_dir={folder}/run", *overrides])
        summary = loop.train(config, Console(lambda text: None))
        size = sum(file.stat().st_size for file in Path(summary.checkpoint).iterdir())
    saving = sum(map(sum, seconds.values()))
    saves = len(seconds["save"])
    print(f"{config_file.name}: {saves} saves of {size / 1e6:.1f} MB in {summary.steps:,} steps", end="")
    print(f", {saving / saves:.3f} s each (of them {sum(seconds['prune']) / saves:.3f} s to prune)")
    print(f"saving takes {saving:.2f} s of {summary.train_seconds:.1f} s: {100 * saving / summary.train_seconds:.2f} %")


if __name__ == "__main__":
    given = sys.argv[1:]
    file = Path(given.pop(0)) if given and "=" not in given[0] else Path("configs/quickstart.yaml")
    main(file, given)
