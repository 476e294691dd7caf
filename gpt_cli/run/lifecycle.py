"""Record how each process of a run ended.

events.jsonl has `started` (from which step), and then `ended` (at which step, and by which of the run's own rules, if
it is complete) or `died` (at which step, and of what). A process that was killed leaves no event: the next process
writes `killed` in its place.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpt_cli.errors import UserError
from gpt_cli.run.checkpoint import checkpoint_step, list_checkpoints
from gpt_cli.run.log import RunLog, read_events, read_metrics
from gpt_cli.runtime.oom_killer import oom_kill_count

_ENDS = ("ended", "died", "killed", "restart loop")  # the last was written up to version 0.2.0


class RunLifecycle:
    """One process's time as the trainer of a run, from `begin` to `end`."""

    def __init__(self, run_dir: Path, log: RunLog, steps: int) -> None:
        self.run_dir, self.log, self.steps = run_dir, log, steps
        self.begun = False
        self.final: str | None = None
        """Why the run is over, once it is; None for one that was asked to stop and can be resumed."""

    def begin(self, step: int, device: str) -> None:
        """Record that training starts from `step` on `device`; called before the log is cut back to it.

        A finished run has nothing to begin.
        """
        if step >= self.steps:
            return
        now = oom_kill_count()
        last = [event for event in read_events(self.run_dir) if event["event"] in (*_ENDS, "started")][-1:]
        if last and last[0]["event"] == "started":
            before = last[0].get("memory_kills")
            memory = {"memory": True} if isinstance(before, int) and now is not None and now > before else {}
            self.log.event("killed", step=self._last_step(), start=last[0].get("step"), **memory)
        self.log.event("started", step=step, device=device, **({} if now is None else {"memory_kills": now}))
        self.begun = True

    def end(self, error: BaseException | None) -> None:
        """Record that training stopped: the run is complete or was asked to stop, unless there is an `error`."""
        if not self.begun:
            return
        if error is None:
            self.log.event("ended", step=self._last_step(), **({} if self.final is None else {"final": self.final}))
            return
        with suppress(UserError):  # for example on a full disk; the user should see the first error
            self.log.event("died", step=self._last_step(), error=f"{type(error).__name__}: {error}"[:500])

    def _last_step(self) -> int:
        """The step that was logged or saved last: between two lines of metrics a signal may have had it saved."""
        saved = [checkpoint_step(path) for path in list_checkpoints(self.run_dir)]
        return max([*saved, *(line["step"] for line in read_metrics(self.run_dir))], default=0)


def why_over(events: Iterable[dict[str, Any]], step: int | None) -> str | None:
    """The rule by which the run of these `events` is over at `step`, its newest, before the last one.

    None if it can be resumed from there, or was trained by a version that did not record it.
    """
    last = [event for event in events if event["event"] in (*_ENDS, "started", "config changed")][-1:]
    return next((str(event["final"]) for event in last if event.get("final") and event.get("step") == step), None)
