"""The runs of a search: drawn one by one, the best of them trained again with other seeds.

DIR/trials.json     the values of the runs so far, in the order in which they were drawn

Run k is drawn from the outcomes of runs 0 to k - lag alone and from a seed of its own, and is written down before it is
trained. It is pruned by comparison with the losses of the same runs at the same step. So neither the values that are
tried nor the steps at which runs are pruned depend on the speed of processes or on when one was killed.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from gpt_cli.errors import RequestError
from gpt_cli.files import read_file, replace_file
from gpt_cli.search.sweep.axes import MAX_POINTS, corners, every_point
from gpt_cli.search.sweep.executor import RunTask
from gpt_cli.search.sweep.outcomes import Outcome
from gpt_cli.search.sweep.sweep import FINALISTS, Runs

TRIALS = "trials.json"
_LIMIT = 1 << 24
_ATTEMPTS = 20  # at drawing values that the schema accepts and that were not tried


class SearchSource:
    """Runs that Optuna draws, with one seed; then the best of them with fresh seeds."""

    def __init__(self, runs: Runs) -> None:
        assert runs.plan.trials is not None
        self.runs, self.trials = runs, runs.plan.trials
        self._drawn = read_trials(runs)
        self._all_points = every_point(runs.request.axes, MAX_POINTS)
        self._tasks: dict[str, RunTask] = {}  # of the trials, in their order
        self._finals: list[RunTask] | None = None
        point = next(iter(corners(runs.request.axes)))
        self._work_of_run = RunTask("", "", runs.request.config_of(point)).work

    @property
    def total_runs(self) -> int:
        seeds = self.runs.plan.seeds
        return self.trials + (min(FINALISTS, self.trials) * seeds if seeds > 1 else 0)

    @property
    def total_work(self) -> float:
        return self.total_runs * self._work_of_run

    def next(self, outcomes: Mapping[str, Outcome]) -> RunTask | None:
        number = len(self._tasks)
        if number < self.trials:
            names = self._history(number)
            if any(name not in outcomes for name in names):
                return None
            task = self._trial(number, [(self._point(name), outcomes[name]) for name in names])
            if task is not None:
                self._tasks[task.name] = task
                return task
            self.trials = number  # all values were tried
        if self._finals is None:
            if any(name not in outcomes for name in self._tasks):
                return None
            self._finals = self._choose_finals(outcomes)
        return self._finals.pop(0) if self._finals else None

    def pruned_at(self, name: str, outcome: Outcome, outcomes: Mapping[str, Outcome]) -> int | None:
        from gpt_cli.search.sweep.optuna_search import pruned_at

        if name not in self._tasks or not outcome.evaluations:
            return None
        names = self._history(self.runs.of_name[name][0])
        history = [(self._point(other), outcomes[other]) for other in names]
        steps = self._tasks[name].config.train.steps
        return pruned_at(self.runs.request.axes, (self._point(name), outcome), history, steps)

    def finalists(self, outcomes: Mapping[str, Outcome]) -> list[int]:
        """The numbers of the best trials, the best first."""
        finished = [name for name in self._tasks if outcomes[name].state == "done"]
        finished.sort(key=lambda name: (outcomes[name].val_loss, name))
        return [self.runs.of_name[name][0] for name in finished[:FINALISTS]]

    def _history(self, number: int) -> list[str]:
        """The trials whose outcomes decide the values of trial `number`."""
        return list(self._tasks)[: max(0, number + 1 - self.runs.plan.lag)]

    def _choose_finals(self, outcomes: Mapping[str, Outcome]) -> list[RunTask]:
        if self.runs.plan.seeds == 1:
            return []
        numbers, seed = self.finalists(outcomes), self.runs.base.seed
        return [
            self.runs.task(number, self.runs.points[number], seed + 1 + offset)
            for offset in range(self.runs.plan.seeds)
            for number in numbers
        ]

    def _trial(self, number: int, history: Sequence[tuple[Mapping[str, str], Outcome]]) -> RunTask | None:
        """Trial `number`: as it was written down, or drawn from `history` and written down; None: none is left."""
        if number < len(self._drawn):
            return self.runs.task(number, self._drawn[number], self.runs.base.seed)
        if (task := self._draw(number, history)) is None:
            return None
        self._drawn.append(self.runs.points[number])
        replace_file(_path(self.runs), (json.dumps(self._drawn, indent=1) + "\n").encode())
        return task

    def _draw(self, number: int, history: Sequence[tuple[Mapping[str, str], Outcome]]) -> RunTask | None:
        """A run of values that were not tried, of Optuna's proposals or, where these repeat, the first there are."""
        from gpt_cli.search.sweep.optuna_search import propose

        seeds = [(self.runs.base.seed * 1_000_003 + number * 1009 + attempt) % 2**32 for attempt in range(_ATTEMPTS)]
        axes, problem = self.runs.request.axes, None
        for point in chain((propose(axes, history, seed) for seed in seeds), self._all_points or ()):
            if point not in self._drawn:
                try:
                    return self.runs.task(number, point, self.runs.base.seed)
                except RequestError as error:  # values of two keys that do not go together
                    problem = error
        if problem is not None and self._all_points is None:  # there may be others
            raise problem
        return None

    def _point(self, name: str) -> dict[str, str]:
        return self.runs.points[self.runs.of_name[name][0]]


def read_trials(runs: Runs) -> list[dict[str, str]]:
    """The values of the trials that were drawn. Raises RequestError for a file of another search, or a damaged one."""
    path, keys = _path(runs), {axis.key for axis in runs.request.axes}
    if not path.exists():
        return []
    try:
        drawn: list[dict[str, str]] = json.loads(read_file(path, _LIMIT))
        is_whole = isinstance(drawn, list) and all(
            point.keys() == keys and all(isinstance(text, str) for text in point.values()) for point in drawn
        )
    except (ValueError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        raise RequestError(
            f"{path} does not have the values of this search", hint="remove it, and they are drawn again as they were"
        )
    return drawn


def _path(runs: Runs) -> Path:
    return runs.request.home / TRIALS
