"""The run that `train.budget` chooses beside the runs around it, on texts of different kinds.

    python -m bench.budget --budget 1m --text FILE [--text FILE ...] [--seeds 2] [--only model optim.lr ...]
        [--set tokenizer.kind=bpe ...]

For each text the run of `gpt train FILE train.budget=TIME` is trained, with the keys that are set, and its neighbours:
the next smaller and larger model, half and twice the context, the batch, the learning rate and the weight decay, more
and less dropout. What a neighbour does not change is as in the run that was chosen, but for the steps, which are as
many as take the same time: steps of both are timed in turn. So no loss depends on what else the machine does, and
the runs are trained side by side, of one thread each. Bits per byte of the whole validation split after the last step;
a choice is good if it is within 0.02 of the best. The plan and the runs stay in bench/out/budget; the same command goes
on with what is there, so move them away where the text or the code is another.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpt_cli.cli.options.train_request import Request
from gpt_cli.config import Config
from gpt_cli.config.duration import parse_duration
from gpt_cli.config.keys import get_key
from gpt_cli.corpus.prepare import Corpus, prepare_corpus
from gpt_cli.files import make_directory, replace_file
from gpt_cli.runtime.device import setup_runtime
from gpt_cli.runtime.processor import default_threads
from gpt_cli.runtime.signals import stop_requests
from gpt_cli.search.sweep.executor import ListSource, RunLimits, RunTask, execute, open_home
from gpt_cli.search.sweep.run_pool import RunPool
from gpt_cli.search.time_budget import (
    LADDER,
    SHAPE,
    chosen_values,
    config_for_budget,
    predict_choice,
    time_candidate,
    with_values,
)
from gpt_cli.terminal.table import render_table

OUT = Path(__file__).parent / "out" / "budget"
WITHIN = 0.02  # bits per byte
ROUNDS = 3  # in which a neighbour and the choice are timed in turn
CHOSEN = "chosen"
HELD = (*SHAPE, "model.context_length", "train.batch_size", "model.dropout")
RATES = ("optim.lr", "optim.weight_decay")
UNTIMED = {"train.budget": None, "train.max_minutes": None, "eval.every": None, "runtime.threads": 1}

Results = Mapping[str, Sequence[tuple[float, int]]]
"""Name of the run -> (bits per byte, steps) of each seed."""


def neighbours(chosen: Config) -> dict[str, dict[str, Any]]:
    """Values by key of each run around `chosen`, by a name that begins with what is changed."""
    held = {key: get_key(chosen, key) for key in HELD}
    variants: dict[str, dict[str, Any]] = {}
    rungs = list(dict.fromkeys(shape for shape, _, _ in LADDER))
    shape = tuple(held[key] for key in SHAPE)
    at = rungs.index(shape) if shape in rungs else -2  # of another shape, which was set, there is no next one
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


def make_plan(
    config: Config, seconds: float, corpus: Corpus, fixed: Set[str] = frozenset()
) -> dict[str, dict[str, Any]]:
    """Values by key of the run that is chosen for so many `seconds`, and of its neighbours that take as long.

    The choice leaves the `fixed` keys as they are in `config`.
    """

    def free(values: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if key not in fixed}

    chosen = config_for_budget(config, seconds, corpus, frozenset(fixed), _note)
    runtime = setup_runtime(config.runtime)
    timed = [time_candidate(chosen, corpus, runtime, _note) for _ in range(ROUNDS)]
    ours = [one.seconds_per_step for one in timed]
    sizes = len(corpus.train), len(corpus.val)
    if (choice := predict_choice(replace(timed[0], seconds_per_step=statistics.median(ours)), seconds, *sizes)) is None:
        sys.exit(f"{seconds:.0f} s are too short")
    chosen = with_values(chosen, free(chosen_values(choice, seconds, len(corpus.train))))  # by the steps that these are
    around = {name: values for name, values in neighbours(chosen).items() if name.partition("=")[0] not in fixed}
    variants = {name: with_values(chosen, values) for name, values in around.items()}
    measured = dict.fromkeys((CHOSEN, *variants), timed[0])  # another rate or decay takes as long
    ratios: dict[str, list[float]] = {name: [] for name in variants if not name.startswith(RATES)}
    for _ in range(ROUNDS):
        for name, of_variant in ratios.items():
            own, measured[name] = (time_candidate(one, corpus, runtime, _note) for one in (chosen, variants[name]))
            ours.append(own.seconds_per_step)
            of_variant.append(measured[name].seconds_per_step / own.seconds_per_step)
    plan = {}
    for name, variant in {CHOSEN: chosen, **variants}.items():
        seconds_per_step = statistics.median(ours) * statistics.median(ratios.get(name, [1.0]))
        candidate = replace(measured[name], seconds_per_step=seconds_per_step)
        if (choice := predict_choice(candidate, seconds, *sizes)) is not None:
            held = {key: get_key(variant, key) for key in (*HELD, *RATES)}
            plan[name] = free(chosen_values(choice, seconds, len(corpus.train))) | held | UNTIMED
    return plan


def tasks_of(
    text: Path, budget: str, seeds: int, only: Sequence[str], keys: Sequence[str] = ()
) -> dict[str, list[RunTask]]:
    """The runs of `text`, with the `keys` (KEY=VALUE) set, by name, the choice first, as planned if they were."""
    home = OUT / re.sub(r"[^\w.=-]+", "-", "-".join([text.stem, budget, *keys]))
    make_directory(home)
    config = Request([str(text), *keys], None, leave_nothing=True).config
    file = home / "plan.json"
    if not file.is_file():
        corpus = prepare_corpus(config.data, config.tokenizer, note=_note)
        seconds = parse_duration(budget)
        assert seconds is not None
        planned = make_plan(config, seconds, corpus, {key.partition("=")[0] for key in keys})
        replace_file(file, json.dumps(planned, indent=2).encode())
    plan = json.loads(file.read_bytes())
    tasks: dict[str, list[RunTask]] = {}
    for name, values in plan.items():
        if name == CHOSEN or not only or name.startswith(tuple(only)):
            for seed in range(seeds):
                run_dir = home / re.sub(r"[^\w.=-]+", "-", f"{name}-seed{seed}")
                varied = with_values(config, {**values, "seed": seed, "run_dir": str(run_dir)})
                tasks.setdefault(name, []).append(RunTask(run_dir.name, f"{text.name}, {name}, seed {seed}", varied))
    return tasks


def describe(text: Path, results: Results) -> str:
    """A table, best first, and how far the choice is from the best."""
    means = {name: statistics.fmean(bpb for bpb, _ in runs) for name, runs in results.items()}
    rows = [
        (name, f"{mean:.3f}", f"{mean - means[CHOSEN]:+.3f}", f"{results[name][0][1]:,}")
        for name, mean in sorted(means.items(), key=lambda item: item[1])
    ]
    verdict = f"{means[CHOSEN] - min(means.values()):.3f} above the best, at most {WITHIN} is asked"
    table = render_table(rows, header=(text.name, "bits per byte", "to the choice", "steps"))
    return f"{table}\n{verdict}\n"


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Train what is missing, and print a table for each text; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", required=True, metavar="TIME", help="such as 1m")
    parser.add_argument("--text", required=True, action="append", type=Path, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=1, choices=range(1, 10), metavar="N")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="neighbours whose names begin so")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys that no run varies")
    parser.add_argument("--jobs", type=int, help="runs side by side (default: one per core)")
    options = parser.parse_args()
    if parse_duration(options.budget) is None:
        parser.error(f"{options.budget} is no length of time such as 90s or 10m")
    with open_home(OUT), stop_requests() as stop, RunPool(options.jobs or default_threads()) as pool:
        for text in options.text:
            tasks = tasks_of(text, options.budget, options.seeds, options.only, options.set)
            runs = [run for by_seed in tasks.values() for run in by_seed]
            execution = execute(ListSource(runs), pool, RunLimits(None), stop, _note)
            if stop.received or execution.left:
                _note("interrupted: the same command goes on")
                return 128 + stop.received if stop.received else 1
            ended = {name: [run.outcome() for run in by_seed] for name, by_seed in tasks.items()}
            results = {n: [(o.bpb, o.steps) for o in outcomes if o.bpb is not None] for n, outcomes in ended.items()}
            print(describe(text, {name: found for name, found in results.items() if found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
