"""A sweep: its plan, its runs and their directories.

DIR/sweep.json                      written first: the config, the keys, how many processes share the machine
DIR/trials.json                     the values of a search: see `search_source.py`
DIR/NNN-lr=0.01,...-seed=1337/      run directories like any other; NNN is the number of the combination of values
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote

from gpt_cli.config import Config, changed_keys, dump_config, load_config, parse_config, to_yaml_scalar
from gpt_cli.corpus.hub import pin_config
from gpt_cli.corpus.sources import refuse_standard_input
from gpt_cli.errors import Notify, RequestError
from gpt_cli.files import list_directory, read_file, replace_file
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.run.find_run import refuse_nested
from gpt_cli.runtime.processor import default_threads
from gpt_cli.search.sweep.axes import Axis, Point, ValueRange, corners, every_point, grid, overrides_of, short_name
from gpt_cli.search.sweep.executor import ListSource, RunTask
from gpt_cli.search.sweep.outcomes import Outcome
from gpt_cli.terminal.words import plural

PLAN = "sweep.json"
_ANOTHER = "choose another directory: --out DIR"
_PLAN_LIMIT = 1 << 20
FINALISTS = 3
"""Runs of a search that are trained again, with other seeds."""
_TRIALS = 20  # runs of a search, unless a budget or --max-runs says how many
_TRIED = 500  # combinations of whole numbers that are tried with the schema before the first run
_LAG = 4  # at least, so that searches by one process and by four draw the same runs


@dataclass(frozen=True)
class SweepPlan:
    """The decisions made before the first run, unchanged when the sweep is resumed but for `seeds` and `trials`."""

    config: str
    """The config, as YAML, without the values that are varied."""
    axes: list[str]
    seeds: int
    lag: int
    """Run k of a search is drawn from the outcomes of runs 0 to k - lag."""
    threads: int | None
    """Threads of each run."""
    trials: int | None
    """Runs of a search; None: there is no range."""


@dataclass(frozen=True)
class SweepRequest:
    """A requested sweep: `file` under the overrides `fixed`, varied in `axes`, with its runs in `home`."""

    file: Path
    fixed: Sequence[str]
    axes: Sequence[Axis]
    seeds: int
    home: Path

    @property
    def is_search(self) -> bool:
        return any(isinstance(axis, ValueRange) for axis in self.axes)

    def base(self) -> Config:
        """The config that is varied, checked with every value. Raises RequestError for any that is wrong."""
        config = load_config(self.file, self.fixed)
        if config.train.budget is not None:
            raise RequestError(
                "train.budget chooses size and steps by itself: runs would differ in more than a sweep varies",
                hint="sweep the config.yaml of a run that it chose, for as long as is given here: train.budget=null"
                " train.max_minutes=null train.steps=N",
            )
        if not self.axes and self.seeds == 1:
            kept = [quote(one) for one in self.fixed if not one.startswith("optim.lr=")]
            again = " ".join(["gpt sweep", quote(str(self.file)), *kept])
            raise RequestError(
                "there is nothing to compare: no key has several values",
                hint=f"{again} optim.lr=0.01,0.02,0.04; --seeds 3 alone compares seeds",
            )
        refuse_standard_input([*config.data.sources, *config.data.val_sources])
        for point in corners(self.axes):
            load_config(self.file, [*self.fixed, *overrides_of(point)])
        return config

    def pinned(self, base: Config, note: Notify) -> tuple["SweepRequest", Config]:
        """Return the request and `base` with the commits of Hub data sets: those of the plan there, or the newest."""
        is_new = not (self.home / PLAN).exists()
        there = None if is_new else parse_config(read_plan(self.home).config, "the plan", of_run=True)
        pinned = pin_config(base, note, there)
        changed = [f"{key}={to_yaml_scalar(value)}" for key, _, value in changed_keys(base, pinned)]
        return replace(self, fixed=[*self.fixed, *changed]), pinned

    def possible_points(self, note: Notify) -> list[dict[str, str]] | None:
        """The combinations of a search that the schema accepts; None where there are too many to try each.

        `note` is called with one that it does not.
        """
        if (points := every_point(self.axes, _TRIED)) is None:
            return None
        possible, refused = [], []
        for point in points:
            try:
                self.config_of(point)
            except RequestError as error:
                refused.append(f"{' '.join(overrides_of(point))}: {error.message}")
            else:
                possible.append(point)
        if refused:
            note(f"{plural(len(refused), 'setting')} of {len(points):,} left out, such as {refused[0]}")
        return possible

    def config_of(self, point: Point, *overrides: str) -> Config:
        return load_config(self.file, [*self.fixed, *overrides_of(point), *overrides])


def make_plan(request: SweepRequest, base: Config, jobs: int, runs: int | None, note: Notify) -> SweepPlan:
    """The plan of a new sweep by `jobs` processes, of at most this many `runs`. Raises RequestError for too few.

    `note` is called where combinations of a search are left out, which the schema refuses.
    """
    trials = None
    if request.is_search:
        again = request.seeds if request.seeds > 1 else 0  # runs of each finalist, of which there are two at least
        trials = _TRIALS if runs is None else max(runs - FINALISTS * again, min(FINALISTS, runs // (1 + again)))
        if trials < 2:
            reason = f": the best of them, two at least, are trained again with {again} seeds each" if again else ""
            fewer = "; or fewer seeds: --seeds 1" if again else ""
            raise RequestError(
                f"{runs} run{' is' if runs == 1 else 's are'} too few{reason}",
                hint=f"--max-runs {FINALISTS * again + _TRIALS}, at least {2 + 2 * again}, or more time{fewer}",
            )
        points = request.possible_points(note)
        trials = trials if points is None else min(trials, len(points))
    threads = None if jobs == 1 else max(1, default_threads() // jobs)
    threads = base.runtime.threads or threads
    written = dump_config(base.model_copy(update={"run_dir": None}))
    return SweepPlan(written, [str(axis) for axis in request.axes], request.seeds, max(jobs, _LAG), threads, trials)


def open_plan(home: Path, plan: SweepPlan, *, is_limited: bool) -> SweepPlan:
    """Write `plan` to `home`, or return the one that is there. Raises RequestError if that is of another sweep.

    Seeds and, if its runs are limited, the runs of a search become those of `plan`: neither changes the runs before.
    """
    path = home / PLAN
    if not path.exists():
        _write_plan(path, plan)
        return plan
    saved = read_plan(home)
    if saved.axes != plan.axes:
        lines = [f"\n  there: {' '.join(saved.axes)}\n  here:  {' '.join(plan.axes) or 'no key with several values'}"]
    else:
        lines = config_changes(saved.config, plan.config)
    if lines:
        raise RequestError(f"{home} is a sweep of another request{''.join(lines)}", hint=_ANOTHER)
    trials = saved.trials
    if is_limited and plan.trials is not None:  # the runs that there are count whatever the limit is now
        trials = max(plan.trials, _trials_begun(home))
    resumed = replace(saved, seeds=plan.seeds, trials=trials)
    if resumed != saved:
        _write_plan(path, resumed)
    return resumed


def _trials_begun(home: Path) -> int:
    """The combinations of a search that have a run in `home`: the first ones, which are numbered from 0."""
    numbers = [name.partition("-")[0] for name in list_directory(home)]
    return max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)


def _write_plan(path: Path, plan: SweepPlan) -> None:
    replace_file(path, (json.dumps(asdict(plan), indent=1) + "\n").encode())


def read_plan(home: Path) -> SweepPlan:
    """The plan of the sweep in `home`. Raises RequestError if it is damaged."""
    try:
        return SweepPlan(**json.loads(read_file(home / PLAN, _PLAN_LIMIT)))
    except (ValueError, TypeError) as error:
        raise RequestError(f"{home / PLAN} is not the plan of a sweep", hint="choose another: --out DIR") from error


def check_home(home: Path) -> None:
    """Raise RequestError unless `home` is empty or the directory of a sweep."""
    with translate_os_errors("create", home):
        is_other = home.exists() and not home.is_dir()
    if is_other:
        raise RequestError(f"{home} is not a directory", hint="choose another: --out DIR")
    names = {name for name in list_directory(home) if not name.startswith(".tmp-")}
    if PLAN not in names and not names <= {"lock"}:
        raise RequestError(f"{home} holds other files and no sweep", hint="choose another: --out DIR")
    refuse_nested(home)


def config_changes(there: str, here: str) -> list[str]:
    """A line for each key in which two configs, as YAML, differ; keys that the older one lacks have their defaults."""
    old, new = (parse_config(text, "the plan", of_run=True) for text in (there, here))
    changes = changed_keys(old, new)
    return [f"\n  {key}: {to_yaml_scalar(a)} there, {to_yaml_scalar(b)} here" for key, a, b in changes]


class Runs:
    """The runs of a sweep by their names: the combination of values and the seed of each."""

    def __init__(self, request: SweepRequest, plan: SweepPlan, base: Config) -> None:
        self.request, self.plan, self.base = request, plan, base
        self.points: dict[int, dict[str, str]] = {}
        self.of_name: dict[str, tuple[int, int]] = {}
        """name -> (number of the combination, seed)"""

    def task(self, number: int, point: dict[str, str], seed: int) -> RunTask:
        """The run of `point` with `seed`. Raises RequestError for values that the schema refuses."""
        values = short_name(point)
        name = "-".join([f"{number:03}", *([values] if values else []), f"seed={seed}"])
        threads = [] if self.plan.threads is None else [f"runtime.threads={self.plan.threads}"]
        run_dir = self.request.home / name
        config = self.request.config_of(point, f"seed={seed}", *threads).model_copy(update={"run_dir": str(run_dir)})
        self.points[number] = point
        self.of_name[name] = (number, seed)
        label = " ".join([*overrides_of(point), f"seed={seed}"])
        return RunTask(name, label, config)

    def losses(self, outcomes: Mapping[str, Outcome], measure: str) -> dict[int, dict[int, float]]:
        """{number of a combination: {seed: its loss}} of the runs that are done."""
        losses: dict[int, dict[int, float]] = {number: {} for number in self.points}
        for name, outcome in outcomes.items():
            value = outcome.bpb if measure == "bpb" else outcome.val_loss
            if outcome.state == "done" and value is not None:
                number, seed = self.of_name[name]
                losses[number][seed] = value
        return losses


def grid_source(runs: Runs) -> ListSource:
    """Every combination with the first seed, then with the next, so that a sweep cut short has runs of each."""
    points, seed = list(grid(runs.request.axes)), runs.base.seed
    return ListSource(
        [
            runs.task(number, point, seed + offset)
            for offset in range(runs.plan.seeds)
            for number, point in enumerate(points)
        ]
    )
