"""Whether the best learning rates of one width are those of another: loss over rates, width by width.

    python -m bench.transfer --text FILE              three widths, both rates of Muon's recipe, one seed
    python -m bench.transfer --text FILE --seeds 3

The model is that of bench/ablations.py in 64, 128 and 256 dimensions, heads of 32, each trained for 250 steps at the
default rates times 1/4 to 4: first that of the hidden matrices, then that of all else. Where rates transfer, the best
one stands in one column (Yang et al., 2022, "Tensor Programs V", figure 1).
"""

import argparse
import statistics
import sys
from pathlib import Path

from bench.ablations import train_once

WIDTHS = (64, 128, 256)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def losses(key: str, width: int, text: Path, seeds: int) -> list[float]:
    """Mean validation loss, in nats per token, at each of FACTORS times the default of `optim.KEY`."""
    from gpt_cli.config import OptimConfig

    shape = (f"data.source={text}", f"model.n_embd={width}", f"model.n_head={width // 32}")
    default = float(getattr(OptimConfig(), key))
    found = []
    for factor in FACTORS:
        runs = [train_once((*shape, f"optim.{key}={default * factor:g}"), seed) for seed in range(1, seeds + 1)]
        found.append(statistics.fmean(runs))
        print(f"optim.{key}={default * factor:g}, {width} wide: {found[-1]:.4f}", file=sys.stderr)
    return found


def main() -> None:
    """Train and print the table, the best rate of each width in bold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, type=Path, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    print("| | width | " + " | ".join(f"x {factor:g}" for factor in FACTORS) + " |")
    print("|---|---|" + "---|" * len(FACTORS))
    for key in ("lr", "adamw_lr"):
        for width in WIDTHS:
            row = losses(key, width, arguments.text.resolve(), arguments.seeds)
            cells = [f"**{loss:.3f}**" if loss == min(row) else f"{loss:.3f}" for loss in row]
            print(f"| `optim.{key}` | {width} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
