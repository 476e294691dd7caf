"""Train a list of runs in parallel, each resumed from its directory.

All state of the runs is in their directories: after a kill the same list resumes and ends with the same outcomes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gpt_cli.config import Config, dump_config
from gpt_cli.errors import Notify, UserError
from gpt_cli.files import DirectoryLock, make_directory
from gpt_cli.run.log import RunLog, read_events
from gpt_cli.runtime.signals import StopRequest
from gpt_cli.search.sweep.outcomes import Outcome, read_outcome
from gpt_cli.search.sweep.run_pool import RunEnd, RunPool
from gpt_cli.terminal.words import format_duration

_POLL = 0.5  # seconds between readings of the runs' logs
_NOTE_EVERY = 30.0  # seconds between messages about progress
_MIN_SHARE = 0.02  # of the work, from which on the remaining time is estimated
_MAX_KILLS = 3  # of the process of one run by others than us, at which the run counts as failed


@dataclass(frozen=True)
class RunTask:
    """A run to train: `config.run_dir` is its directory, `name` that directory's name."""

    name: str
    label: str
    """The name in messages."""
    config: Config

    @property
    def run_dir(self) -> Path:
        assert self.config.run_dir is not None
        return Path(self.config.run_dir)

    @property
    def work(self) -> float:
        """An estimate of its computation, used only as a ratio to that of other runs."""
        return self.config.train.steps * step_work(self.config)

    def outcome(self, *, ended: bool = False) -> Outcome:
        """See `read_outcome`."""
        return read_outcome(self.run_dir, self.config.train.steps, ended=ended)

    def share(self, outcome: Outcome) -> float:
        """The share of its steps at `outcome`."""
        return outcome.steps / max(1, self.config.train.steps)


class RunSource(Protocol):
    """Chooses the next run from the outcomes of those before."""

    def next(self, outcomes: Mapping[str, Outcome]) -> RunTask | None:
        """A run that was not returned before; None if there is none left, or none until others have ended."""
        ...

    def pruned_at(self, name: str, outcome: Outcome, outcomes: Mapping[str, Outcome]) -> int | None:
        """The step of the evaluation at which the run `name` is pruned; None: it goes on."""
        ...

    @property
    def total_work(self) -> float:
        """An estimate for all runs together, in the unit of `RunTask.work`."""
        ...

    @property
    def total_runs(self) -> int: ...


class ListSource:
    """The runs of a list, in their order, each to its end."""

    def __init__(self, tasks: Sequence[RunTask]) -> None:
        self.total_work, self.total_runs = sum(task.work for task in tasks), len(tasks)
        self._tasks = iter(tasks)

    def next(self, _: Mapping[str, Outcome]) -> RunTask | None:
        return next(self._tasks, None)

    def pruned_at(self, _name: str, _outcome: Outcome, _outcomes: Mapping[str, Outcome]) -> int | None:
        return None


@dataclass
class RunLimits:
    """Limits at which no further run is started."""

    budget: float | None = None
    """Seconds for all runs of the list, from the start of the first."""
    max_runs: int | None = None


@dataclass
class Execution:
    """The runs that were started, and their outcomes."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    tasks: dict[str, RunTask] = field(default_factory=dict)
    left: str | None = None
    """The reason why some runs were not started."""
    kills: dict[str, int] = field(default_factory=dict)
    """Kills of each run's processes."""


def step_work(config: Config) -> float:
    """An estimate of a step's work: its matrix products, and a constant per token."""
    model = config.model
    return config.train.batch_size * model.context_length * (12.0 * model.n_layer * model.n_embd**2 + 1e5)


def execute(
    source: RunSource,
    pool: RunPool,
    limits: RunLimits,
    request: StopRequest,
    note: Notify,
    clock: Callable[[], float] = time.monotonic,
) -> Execution:
    """Train the runs of `source` until it has no more, a limit is reached or a signal asks to stop (`request`)."""
    execution = Execution()
    progress = Progress(source, clock, limits)
    while True:
        while execution.left is None and pool.has_free and request.received is None:
            if (task := source.next(execution.outcomes)) is None:
                break
            _begin(task, source, pool, limits, execution, progress)
        if not pool.running:
            return execution
        if request.received is not None:
            pool.stop_all()
        for end in pool.wait(_POLL):
            if end.killed and request.received is None and _restart(end, pool, execution, note):
                continue
            _record_end(end, source, execution, progress, note, interrupted=request.received is not None)
        for name in pool.running:
            outcome = execution.tasks[name].outcome()
            progress.reached(name, execution.tasks[name].share(outcome))
            if source.pruned_at(name, outcome, execution.outcomes) is not None:
                pool.stop(name)
        progress.report(note)


def _begin(
    task: RunTask, source: RunSource, pool: RunPool, limits: RunLimits, execution: Execution, progress: "Progress"
) -> None:
    outcome = _apply_pruning(task, task.outcome(), source, execution.outcomes)
    if not outcome.is_final:
        if limits.max_runs is not None and len(execution.tasks) >= limits.max_runs:
            execution.left = f"--max-runs {limits.max_runs} is reached"
        elif limits.budget is not None and _ends_late(task, pool.jobs, limits.budget, execution, progress.elapsed):
            execution.left = "the budget has no time for another run"
        if execution.left is not None:
            return
    execution.tasks[task.name] = task
    progress.begun(task, outcome)
    if outcome.is_final:
        execution.outcomes[task.name] = outcome
    else:
        pool.start(task.name, dump_config(task.config))


def _ends_late(task: RunTask, jobs: int, budget: float, execution: Execution, elapsed: float) -> bool:
    """True if `task`, begun `elapsed` seconds after the first, would end after the budget at the pace so far."""
    ended = [(execution.tasks[name], outcome) for name, outcome in execution.outcomes.items() if outcome.seconds]
    if not ended:
        return elapsed > budget
    spent = sum(outcome.seconds for _, outcome in ended)
    pace = spent / sum(other.work * other.share(outcome) for other, outcome in ended)
    running = [other.work for name, other in execution.tasks.items() if name not in execution.outcomes]
    return elapsed + pace * task.work > budget or spent + pace * (sum(running) + task.work) > budget * jobs


def _restart(end: RunEnd, pool: RunPool, execution: Execution, note: Notify) -> bool:
    """Restart a run whose process was killed; False if that happened _MAX_KILLS times."""
    kills = execution.kills[end.name] = execution.kills.get(end.name, 0) + 1
    if kills >= _MAX_KILLS:
        return False
    task = execution.tasks[end.name]
    note(f"  {task.label}: {end.error}; it goes on from its last checkpoint")
    pool.start(task.name, dump_config(task.config))
    return True


def _record_end(
    end: RunEnd, source: RunSource, execution: Execution, progress: "Progress", note: Notify, *, interrupted: bool
) -> None:
    task = execution.tasks[end.name]
    outcome = _apply_pruning(task, task.outcome(ended=end.exit_code == 0), source, execution.outcomes)
    if not outcome.is_final and (end.error is not None or not interrupted):
        lost = "its metrics.jsonl has lost the last evaluation: remove its directory, and it is trained anew"
        reason = lost if end.exit_code == 0 else "it was interrupted"
        outcome = replace(outcome, state="failed", error=end.error or reason)
    if not outcome.is_final:
        note(f"  {task.label}: " + (f"saved at step {outcome.steps:,}" if outcome.steps else "stopped as it began"))
        return
    execution.outcomes[task.name] = outcome
    progress.reached(task.name, 1.0)
    summary = {
        "failed": f"failed: {outcome.error}",
        "pruned": f"given up at step {outcome.steps:,}, val loss {outcome.val_loss or 0.0:.4f}",
    }.get(outcome.state, f"val loss {outcome.val_loss or 0.0:.4f}, {format_duration(outcome.seconds)}")
    note(f"  {len(execution.outcomes)}/{source.total_runs} {task.label}: {summary}")


def _apply_pruning(task: RunTask, outcome: Outcome, source: RunSource, outcomes: Mapping[str, Outcome]) -> Outcome:
    """`outcome`, or that of a pruned run if the source prunes it at an evaluation that it has passed."""
    step = source.pruned_at(task.name, outcome, outcomes)  # also if it failed: that may have happened later
    if step is None:
        return outcome
    _record_pruning(task.run_dir, step)
    return outcome.pruned(step)


def _record_pruning(run_dir: Path, step: int) -> None:
    """Add an event to the run's log."""
    try:
        if any(event["event"] == "pruned" for event in read_events(run_dir)):
            return
        with DirectoryLock(run_dir), RunLog(run_dir) as log:
            log.event("pruned", step=step)
    except UserError:  # such as a lock: its process is still ending, and the event is added when the sweep is resumed
        return


class Progress:
    """The share of the work that is done, and the remaining time at the pace of this process."""

    def __init__(self, source: RunSource, clock: Callable[[], float], limits: RunLimits) -> None:
        self._source, self._clock, self._limits = source, clock, limits
        self._started = self._last_note = clock()
        self._work: dict[str, float] = {}
        self._share: dict[str, float] = {}
        self._before: dict[str, float] = {}

    def begun(self, task: RunTask, outcome: Outcome) -> None:
        """Count a run that had got as far as `outcome` before this process started."""
        share = 1.0 if outcome.is_final else task.share(outcome)
        self._work[task.name], self._share[task.name], self._before[task.name] = task.work, share, share

    @property
    def elapsed(self) -> float:
        """Seconds since this process began."""
        return self._clock() - self._started

    def reached(self, name: str, share: float) -> None:
        self._share[name] = max(share, self._share[name])

    def report(self, note: Notify) -> None:
        """Report the progress, every half minute."""
        now = self._clock()
        if now - self._last_note < _NOTE_EVERY:
            return
        self._last_note = now
        done, total = self._sum(self._share), max(self._total_work, 1e-9)
        seconds = self.seconds_left()
        remaining = "" if seconds is None else f", about {format_duration(seconds)} left"
        note(f"  {min(1.0, done / total):.0%} of the work done{remaining}")

    def seconds_left(self) -> float | None:
        """The remaining time at the pace of this process; None while too little is done to estimate it."""
        total = self._total_work
        done, before = self._sum(self._share), self._sum(self._before)
        if total <= 0 or done - before < _MIN_SHARE * max(total - before, 1e-9):
            return None
        return max(0.0, total - done) * self.elapsed / (done - before)

    @property
    def _total_work(self) -> float:
        """An estimate for the runs that `max_runs` lets begin, as if all had the same work."""
        runs = self._source.total_runs
        begun = runs if self._limits.max_runs is None else min(runs, self._limits.max_runs)
        return self._source.total_work * begun / max(1, runs)

    def _sum(self, shares: Mapping[str, float]) -> float:
        return sum(share * self._work[name] for name, share in shares.items())


def open_home(home: Path) -> DirectoryLock:
    """Create and lock the directory of a list of runs. Raises LockedError if another process has it."""
    make_directory(home)
    return DirectoryLock(home)
