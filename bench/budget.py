"""Compare the run that `train.budget` chooses with the runs around it, in equal time.

    python -m bench.budget --budget 10m --text FILE [--text FILE ...] [--seeds 2] [--only model optim.lr ...]
        [section.key=value ...]

For each text, the run of `gpt train FILE train.budget=TIME` is trained, and its neighbours: the next smaller and larger
model, half and twice the context, the batch, the learning rate and the weight decay, more and less dropout. A neighbour
has as many steps as take the same time: steps of both are timed in turn, on all cores. Then all runs have a fixed
number of steps, so no loss depends on what else the machine does, and they train side by side, with one thread each.

Bits per byte are of the whole validation split after the last step; a choice is good if no neighbour is more than 0.02
lower. `expected` is the loss by the law that made the choice, in nats per token. The plan and the runs stay in
bench/out/budget, and the same command goes on with what is there: move them away where the text or the code is another.
"""

import argparse
import json
import re
import statistics
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.common import OUT, gpt, printed, write_record
from gpt_cli.cli.options.train_request import resolve
from gpt_cli.config import Config, to_yaml_scalar
from gpt_cli.config.keys import get_key
from gpt_cli.config.section import parse_duration
from gpt_cli.cores import usable_cores
from gpt_cli.corpus.prepare import Corpus, prepare_corpus
from gpt_cli.runtime.device import setup_runtime
from gpt_cli.search.budget_choice import LADDER, SHAPE, chosen_values, predict_choice
from gpt_cli.search.time_budget import config_for_budget, recurrence_of, time_candidate, with_values
from gpt_cli.terminal.table import render_table

WITHIN = 0.02  # bits per byte
ROUNDS = 3  # in which a neighbour and the choice are timed in turn
CHOSEN = "chosen"
HELD = (*SHAPE, "model.context_length", "train.batch_size", "model.dropout")
RATES = ("optim.lr", "optim.weight_decay")
UNTIMED = {"train.max_minutes": None, "eval.every": None, "checkpoint.every": None, "runtime.threads": 1}
Values = dict[str, Any]


class Result(NamedTuple):
    """The end of a run: bits per byte, nats per token, and its steps."""

    bpb: float
    loss: float
    steps: int


def neighbours(chosen: Config) -> dict[str, Values]:
    """Return the values of each run around `chosen`, by a name that begins with what it changes."""
    held = {key: get_key(chosen, key) for key in (*HELD, *RATES)}
    rungs = list(dict.fromkeys(shape for shape, _, _ in LADDER))
    shape = tuple(held[key] for key in SHAPE)
    at = rungs.index(shape) if shape in rungs else -2  # another shape, which was set, has no next one
    changes: dict[str, Values] = {}
    for name, number in (("smaller", at - 1), ("larger", at + 1)):
        if 0 <= number < len(rungs):
            changes[f"model: the next {name}"] = dict(zip(SHAPE, rungs[number], strict=True))
    for key in ("model.context_length", "train.batch_size"):
        changes |= {f"{key}={value}": {key: value} for value in (held[key] // 2, held[key] * 2) if value}
    around = (round(held["model.dropout"] + change, 2) for change in (-0.1, 0.1))
    changes |= {f"model.dropout={value}": {"model.dropout": value} for value in around if value >= 0.0}
    for key in RATES:
        halved_and_doubled = (float(f"{held[key] * factor:.3g}") for factor in (0.5, 2.0))
        changes |= {f"{key}={value}": {key: value} for value in halved_and_doubled}
    return {name: held | values for name, values in changes.items()}


def make_plan(config: Config, seconds: float, corpus: Corpus, fixed: frozenset[str]) -> dict[str, Values]:
    """Return the values of the run that is chosen for so many `seconds`, and of its neighbours that take as long.

    All keys but the `fixed` ones are chosen. Beside the values of a run stands its `expected` loss.
    """
    chosen, expected_loss = config_for_budget(config, seconds, corpus, fixed, note)
    around = {name: values for name, values in neighbours(chosen).items() if name.partition("=")[0] not in fixed}
    variants = {name: with_values(chosen, values) for name, values in around.items()}
    runtime = setup_runtime(config.runtime)
    measured = dict.fromkeys((CHOSEN, *variants), time_candidate(chosen, corpus, runtime, note))
    ours: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in variants if not name.startswith(RATES)}  # those take as long
    for _ in range(ROUNDS):
        for name, of_variant in ratios.items():
            own, measured[name] = (time_candidate(one, corpus, runtime, note) for one in (chosen, variants[name]))
            ours.append(own.seconds_per_step)
            of_variant.append(measured[name].seconds_per_step / own.seconds_per_step)
    plan: dict[str, Values] = {}
    difficulty, recurrence = 1.0, recurrence_of(config, corpus)
    for name, variant in {CHOSEN: chosen, **variants}.items():
        seconds_per_step = statistics.median(ours) * statistics.median(ratios.get(name, [1.0]))
        candidate = replace(measured[name], seconds_per_step=seconds_per_step)
        choice = predict_choice(candidate, seconds, len(corpus.train), len(corpus.val), recurrence=recurrence)
        if choice is None:
            continue
        if name == CHOSEN and expected_loss is not None:
            difficulty = expected_loss / choice.loss
        values = chosen_values(choice, seconds, len(corpus.train), chosen.optim.peak_lr)
        held = {key: get_key(variant, key) for key in (*HELD, *RATES)}
        values = {key: value for key, value in (values | held).items() if key not in fixed}
        plan[name] = {"values": values | UNTIMED, "expected": difficulty * choice.loss}
    return plan


def plan_of(text: Path, options: Namespace) -> tuple[Path, dict[str, Values]]:
    """Return the directory of the runs of `text`, and their plan: the one that is there, or a new one."""
    name = re.sub(r"[^\w.=-]+", "-", "-".join([text.stem, options.budget, *options.overrides]))
    home = OUT / "budget" / name
    file = home / "plan.json"
    if not file.is_file():
        config = resolve([str(text), *options.overrides], stdin="refuse", into_run=False).config
        corpus = prepare_corpus(config.data, config.tokenizer, note=note)
        fixed = frozenset(override.partition("=")[0] for override in options.overrides)
        seconds = parse_duration(options.budget)
        assert seconds is not None
        plan = make_plan(config, seconds, corpus, fixed)
        home.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    return home, json.loads(file.read_bytes())


def train(text: Path, home: Path, name: str, seed: int, values: Values, overrides: Sequence[str]) -> Result:
    """Train a run of the plan, or go on with it."""
    run_dir = home / re.sub(r"[^\w.=-]+", "-", f"{name}-seed{seed}")
    values = {**values, "seed": seed, "run_dir": str(run_dir)}
    keys = [f"{key}={to_yaml_scalar(value)}" for key, value in values.items()]
    summary = printed(gpt("train", str(text), *overrides, *keys, "--json"))
    note(f"{run_dir.name}: bits per byte {summary['bpb']:.4f} after {summary['steps']:,} steps")
    return Result(summary["bpb"], summary["val_loss"], summary["steps"])


def describe(text: Path, plan: Mapping[str, Values], results: Mapping[str, Sequence[Result]]) -> str:
    """Return a table of the runs of `text`, best first, and how far the choice is from the best."""
    means = {name: statistics.fmean(run.bpb for run in runs) for name, runs in results.items()}
    rows = []
    for name, mean in sorted(means.items(), key=lambda item: item[1]):
        reached, expected = statistics.fmean(run.loss for run in results[name]), plan[name]["expected"]
        figures = (f"{mean:.3f}", f"{mean - means[CHOSEN]:+.3f}", f"{results[name][0].steps:,}")
        rows.append((name, *figures, f"{reached:.3f}", f"{expected:.3f}", f"{expected - reached:+.3f}"))
    header = (text.name, "bits per byte", "to the choice", "steps", "loss", "expected", "error")
    table = render_table(rows, header=header, right=range(1, len(header)))
    return f"{table}\n{means[CHOSEN] - min(means.values()):.3f} above the best, at most {WITHIN} is asked"


def note(line: str) -> None:
    """Print a line to stderr."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Train what is missing, print a table for each text, and write bench/out/budget.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", required=True, metavar="TIME", help="such as 1m")
    parser.add_argument("--text", required=True, action="append", type=Path, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=1, choices=range(1, 10), metavar="N")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="neighbours whose names begin so")
    parser.add_argument("--jobs", type=int, default=len(usable_cores()), help="runs side by side (default: one a core)")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="keys that no run varies")
    options = parser.parse_args()
    if parse_duration(options.budget) is None:
        parser.error(f"{options.budget} is no length of time such as 90s or 10m")
    record: dict[str, Any] = {}
    for text in (path.resolve() for path in options.text):
        home, plan = plan_of(text, options)
        names = [name for name in plan if name == CHOSEN or not options.only or name.startswith(tuple(options.only))]
        with ThreadPoolExecutor(options.jobs) as pool:
            started = {
                name: [
                    pool.submit(train, text, home, name, seed, plan[name]["values"], options.overrides)
                    for seed in range(options.seeds)
                ]
                for name in names
            }
            results = {name: [run.result() for run in runs] for name, runs in started.items()}
        print(f"\n{describe(text, plan, results)}", flush=True)
        record[text.name] = {"plan": plan, "results": results}
    write_record("budget", [options.budget], record)


if __name__ == "__main__":
    main()
