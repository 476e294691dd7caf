"""The run that `train.budget` chooses beside the runs around it, on texts of different kinds.

    python -m bench.budget --budget 1m --text FILE [--text FILE ...] [--seeds 2] [--only model optim.lr ...]

For each text the run of `gpt train FILE train.budget=TIME` is trained, and then its neighbours in the same time: the
next smaller and larger model, half and twice the context, the batch, the learning rate and the weight decay, more and
less dropout. What a neighbour does not change is as in the run that was chosen, but for the steps, which are as many as
the time allows. Bits per byte of the whole validation split after the last step; a choice is good if it is within 0.02
of the best. Runs stay in bench/out/budget; the same command goes on with what is there.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt_cli.config import Config, load_config
from gpt_cli.config.dump import to_yaml_scalar
from gpt_cli.config.duration import parse_duration
from gpt_cli.config.keys import get_key
from gpt_cli.search.time_budget import LADDER, SHAPE
from gpt_cli.terminal.table import render_table

OUT = Path(__file__).parent / "out" / "budget"
WITHIN = 0.02  # bits per byte
REFUSED = 2  # the exit code
HELD = (*SHAPE, "model.context_length", "train.batch_size", "model.dropout")
RATES = ("optim.lr", "optim.weight_decay")


def neighbours(chosen: Config) -> dict[str, dict[str, Any]]:
    """Values by key of each run around `chosen`, by a name that begins with what is changed."""
    held = {key: get_key(chosen, key) for key in HELD}
    variants: dict[str, dict[str, Any]] = {}
    rungs = list(dict.fromkeys(shape for shape, _, _ in LADDER))
    at = rungs.index(tuple(held[key] for key in SHAPE))
    for name, number in (("smaller", at - 1), ("larger", at + 1)):
        if 0 <= number < len(rungs):
            variants[f"model: the next {name}"] = held | dict(zip(SHAPE, rungs[number], strict=True))
    for key in ("model.context_length", "train.batch_size"):
        for value in (held[key] // 2, held[key] * 2):
            if value:
                variants[f"{key}={value}"] = held | {key: value}
    for value in (round(held["model.dropout"] + change, 2) for change in (-0.1, 0.1)):
        if value >= 0.0:
            variants[f"model.dropout={value}"] = held | {"model.dropout": value}
    for key in RATES:
        for factor in (0.5, 2.0):
            value = float(f"{get_key(chosen, key) * factor:.3g}")
            variants[f"{key}={value}"] = held | {key: value}
    return variants


def train(text: Path, budget: str, name: str, values: Mapping[str, Any], seed: int) -> dict[str, Any] | None:
    """The summary of the run, trained unless it is there; None where gpt refuses it, as too slow for the time."""
    slug = "".join(character if character.isalnum() or character in "=.-" else "-" for character in name)
    run_dir = OUT / f"{text.name}-{budget}" / f"{slug}-seed{seed}"
    overrides = [f"{key}={to_yaml_scalar(value)}" for key, value in values.items()]
    command = [sys.executable, "-m", "gpt_cli", "train", str(text), f"train.budget={budget}", f"run_dir={run_dir}"]
    done = subprocess.run([*command, f"seed={seed}", *overrides, "--json"], capture_output=True, text=True, check=False)
    if done.returncode == REFUSED and "train.budget leaves" in done.stderr:
        return None
    if done.returncode:
        sys.exit(done.stderr)
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def measure(text: Path, budget: str, seeds: int, only: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Summaries of all seeds by the name of the run, the choice first; each is printed to stderr as soon as it ends."""

    def runs(name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [summary for seed in range(seeds) if (summary := train(text, budget, name, values, seed)) is not None]

    runs_by_name = {"chosen": runs("chosen", {})}
    if not runs_by_name["chosen"]:
        sys.exit(f"train.budget={budget} is too short for {text}")
    chosen = load_config(Path(runs_by_name["chosen"][0]["run_dir"]) / "config.yaml")
    for name, values in neighbours(chosen).items():
        if (not only or name.startswith(tuple(only))) and (summaries := runs(name, values)):
            runs_by_name[name] = summaries
            print(f"{text.name}, {name}: {mean(runs_by_name[name]):.4f} bits per byte", file=sys.stderr, flush=True)
    return runs_by_name


def mean(summaries: list[dict[str, Any]]) -> float:
    return statistics.fmean(summary["bpb"] for summary in summaries)


def describe(text: Path, runs_by_name: dict[str, list[dict[str, Any]]]) -> str:
    """A table, best first, and how far the choice is from the best."""
    chosen = mean(runs_by_name["chosen"])
    rows = [
        (name, f"{mean(runs):.3f}", f"{mean(runs) - chosen:+.3f}", f"{statistics.fmean(r['steps'] for r in runs):,.0f}")
        for name, runs in sorted(runs_by_name.items(), key=lambda item: mean(item[1]))
    ]
    best = min(mean(runs) for runs in runs_by_name.values())
    verdict = f"{chosen - best:.3f} above the best, at most {WITHIN} is asked"
    table = render_table(rows, header=(text.name, "bits per byte", "to the choice", "steps"))
    return f"{table}\n{verdict}\n"


def main() -> None:
    """Train, and print a table for each text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", required=True, metavar="TIME", help="such as 1m")
    parser.add_argument("--text", required=True, action="append", type=Path, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=1, choices=range(1, 10), metavar="N")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="neighbours whose names begin so")
    options = parser.parse_args()
    if parse_duration(options.budget) is None:
        parser.error(f"{options.budget} is no length of time such as 90s or 10m")
    for text in options.text:
        print(describe(text, measure(text, options.budget, options.seeds, options.only)), flush=True)


if __name__ == "__main__":
    main()
