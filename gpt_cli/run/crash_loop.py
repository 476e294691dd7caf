"""Record how each process of a run ended, and detect crash loops.

events.jsonl has `started` (from which step), and then `ended` (at which step, and by which of the run's own rules, if
it is not to go on) or `died` (at which step, and of what). A process that
was killed, or whose machine was, cannot say so: the next one writes `killed` in its place. Mostly that is no fault of
the run, and no reason not to go on; but a run that is killed again and again before it has saved anything, at one and
the same step or while the kernel was killing for want of memory, would go round for ever.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt_cli.errors import UserError
from gpt_cli.run.checkpoint import checkpoint_step, list_checkpoints
from gpt_cli.run.log import RunLog, read_events, read_metrics
from gpt_cli.runtime.oom_killer import oom_kill_count

MAX_DEATHS = 3  # at one step, one after the other
MAX_MEMORY_KILLS = 3  # without a checkpoint between, while the kernel was killing for want of memory
MAX_KILLS = 10  # without a checkpoint between, at one step

Event = dict[str, Any]


@dataclass(frozen=True)
class CrashLoop:
    """Starts that came to the same end, again and again."""

    step: int
    message: str
    hint: str


class RunLifecycle:
    """One process's time as the trainer of a run, from `begin` to `end`."""

    def __init__(self, run_dir: Path, log: RunLog, steps: int) -> None:
        self.run_dir, self.log, self.steps = run_dir, log, steps
        self.begun = False
        self.final: str | None = None
        """Why the run is over, once it is; None for one that was asked to stop, and is to go on."""

    def begin(self, step: int, device: str) -> None:
        """Training is about to go on from `step` on `device`; called before the log is cut back to it.

        Raises UserError if the last processes all came to the same end (see the module). That is reported once: the
        process after it tries again. A run that is finished has nothing to begin.
        """
        if step >= self.steps:
            return
        self._record_previous_exit()
        events = read_events(self.run_dir)
        if (loop := _repeated_death(events) or _repeated_kill(events)) is not None:
            self.log.event("restart loop", step=loop.step)
            raise UserError(loop.message, hint=loop.hint)
        kills = oom_kill_count()
        self.log.event("started", step=step, device=device, **({} if kills is None else {"memory_kills": kills}))
        self.begun = True

    def end(self, error: BaseException | None) -> None:
        """The process no longer trains the run: it is finished or was asked to stop, unless there is an `error`."""
        if not self.begun:
            return
        if error is None:
            self.log.event("ended", step=self._last_step(), **({} if self.final is None else {"final": self.final}))
            return
        with suppress(UserError):  # on a full disk, say; the error itself is what the user is to see
            self.log.event("died", step=self._last_step(), error=f"{type(error).__name__}: {error}"[:500])

    def _record_previous_exit(self) -> None:
        events = [event for event in read_events(self.run_dir) if event["event"] in (*_ENDS, "started")]
        if not events or events[-1]["event"] != "started":
            return
        before, now = events[-1].get("memory_kills"), oom_kill_count()
        is_memory = before is not None and now is not None and now > before
        fields = {"start": events[-1].get("step"), **({"memory": True} if is_memory else {})}
        self.log.event("killed", step=self._last_step(), **fields)

    def _last_step(self) -> int:
        """The step that was logged or saved last: between two lines of metrics a signal may have had it saved."""
        saved = [checkpoint_step(path) for path in list_checkpoints(self.run_dir)]
        return max([*saved, *(line["step"] for line in read_metrics(self.run_dir))], default=0)


_ENDS = ("ended", "died", "killed", "restart loop")


def why_over(events: Iterable[Event], step: int | None) -> str | None:
    """The rule by which the run of these `events` is over at `step`, its newest, before the last one.

    None if it is to go on from there, or was trained by a version that did not say.
    """
    last = [event for event in events if event["event"] in (*_ENDS, "started", "config changed")][-1:]
    return next((str(event["final"]) for event in last if event.get("final") and event.get("step") == step), None)


def _repeated_death(events: list[Event]) -> CrashLoop | None:
    """The last processes died of an error, all at one step. Being killed in between does not count."""
    last = [event for event in events if event["event"] in ("ended", "died", "restart loop")][-MAX_DEATHS:]
    if len(last) < MAX_DEATHS or any(end["event"] != "died" for end in last) or len({e.get("step") for e in last}) > 1:
        return None
    step = last[-1].get("step", 0)
    return CrashLoop(
        step,
        f"this run has died {MAX_DEATHS} times at step {step:,}, the last time because: {last[-1].get('error')}",
        "see its events.jsonl; after mending the cause, the same command resumes from the last checkpoint",
    )


def _repeated_kill(events: list[Event]) -> CrashLoop | None:
    """The last processes were killed, and none had saved a checkpoint: each started from the same step."""
    ends = [event for event in events if event["event"] in _ENDS]
    others = [number for number, end in enumerate(ends, start=1) if end["event"] != "killed"]
    kills = ends[others[-1] if others else 0 :]  # since the last end of another kind
    kills = [kill for kill in kills if kill.get("start") == kills[-1].get("start")]
    by_memory = kills[-MAX_MEMORY_KILLS:]
    if len(by_memory) == MAX_MEMORY_KILLS and all(kill.get("memory") for kill in by_memory):
        return CrashLoop(
            by_memory[-1].get("step", 0),
            f"this run was killed {MAX_MEMORY_KILLS} times before it had saved anything, while the kernel was killing"
            " processes for want of memory",
            "give it more memory, or lower train.micro_batch_size (same result); then run the same command again",
        )
    by_step = kills[-MAX_KILLS:]
    if len(by_step) == MAX_KILLS and len({kill.get("step") for kill in by_step}) == 1:
        step = by_step[-1].get("step", 0)
        return CrashLoop(
            step,
            f"this run was killed {MAX_KILLS} times at step {step:,}, before it had saved anything: for want of"
            " memory, by a limit of time, or by a device that fails",
            "look into the system's log, lower train.micro_batch_size or checkpoint.every; then run it again",
        )
    return None
