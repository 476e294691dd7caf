"""Transfer of the best learning rates from one width to another: loss over rates, width by width.

    python -m bench.transfer --text FILE              three widths, both rates of Muon's recipe, one seed
    python -m bench.transfer --text FILE --seeds 3

The model is that of bench/ablations.py in 64, 128 and 256 dimensions, heads of 32, each trained for 250 steps at the
default rates times 1/4 to 4: first that of the hidden matrices, then that of all else. Where rates transfer, the best
one stands in one column (Yang et al., 2022, "Tensor Programs V", figure 1). The runs are kept beside those of
bench/ablations.py: the same command goes on.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.ablations import Row, loss_of, task_of, train_all
from gpt_cli.config import OptimConfig
from gpt_cli.search.sweep.executor import RunTask

WIDTHS = (64, 128, 256)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def tasks_of(key: str, width: int, text: Path, seeds: int) -> list[list[RunTask]]:
    """For each of FACTORS, the runs at so many times the default of `optim.KEY`."""
    shape = (f"data.source={text}", f"model.n_embd={width}", f"model.n_head={width // 32}")
    default = float(getattr(OptimConfig(), key))
    rows = [Row("transfer", (f"optim.{key}={default * factor:g}",)) for factor in FACTORS]
    return [[task_of(f"width={width}", shape, row, seed) for seed in range(1, seeds + 1)] for row in rows]


def mean_loss(tasks: Sequence[RunTask]) -> float:
    """In nats per token; infinite where a run has none."""
    return statistics.fmean(math.inf if (loss := loss_of(task)) is None else loss for task in tasks)


def main() -> None:
    """Train and print the table, the best rate of each width in bold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, type=Path, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    text, cells = arguments.text.resolve(), [(key, width) for key in ("lr", "adamw_lr") for width in WIDTHS]
    runs = {cell: tasks_of(*cell, text, arguments.seeds) for cell in cells}
    if code := train_all([task for rows in runs.values() for tasks in rows for task in tasks]):
        sys.exit(code)
    print("| | width | " + " | ".join(f"x {factor:g}" for factor in FACTORS) + " |")
    print("|---|---|" + "---|" * len(FACTORS))
    for (key, width), rows in runs.items():
        row = [mean_loss(tasks) for tasks in rows]
        cells = [f"**{loss:.3f}**" if loss == min(row) else f"{loss:.3f}" for loss in row]
        print(f"| `optim.{key}` | {width} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
