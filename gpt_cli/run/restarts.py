"""How the processes of a run ended, and when starting yet another one is of no use.

events.jsonl has `started` (from which step), and then `ended` or `died` (at which step, and of what). A process that
was killed, or whose machine was, cannot say so: the next one writes `killed` in its place. That is no fault of the
run, and no reason not to go on, however often it happens.
"""

from contextlib import suppress
from pathlib import Path

from gpt_cli.errors import UserError
from gpt_cli.run.log import RunLog, read_events, read_metrics

MOST_DEATHS = 3  # at one step, one after the other


class Lifetime:
    """One process's time as the trainer of a run, from `begin` to `end`."""

    def __init__(self, run_dir: Path, log: RunLog, steps: int) -> None:
        self.run_dir, self.log, self.steps = run_dir, log, steps
        self.begun = False

    def begin(self, step: int, device: str) -> None:
        """Training is about to go on from `step` on `device`; called before the log is cut back to it.

        Raises UserError if the last processes all died at one and the same step. That is told once: the process
        after it tries again. A run that is finished has nothing to begin.
        """
        if step >= self.steps:
            return
        self._find_out_about_the_last_one()
        if (death := _repeated_death(self.run_dir)) is not None:
            died_at, cause = death
            self.log.event("restart loop", step=died_at)
            raise UserError(
                f"this run has died {MOST_DEATHS} times at step {died_at:,}, the last time because: {cause}",
                hint="see its events.jsonl; after mending the cause, the same command goes on from the last checkpoint",
            )
        self.log.event("started", step=step, device=device)
        self.begun = True

    def end(self, error: BaseException | None) -> None:
        """The process no longer trains the run: it is finished or was asked to stop, unless there is an `error`."""
        if not self.begun:
            return
        if error is None:
            self.log.event("ended", step=self._last_step())
            return
        with suppress(UserError):  # on a full disk, say; the error itself is what the user is to see
            self.log.event("died", step=self._last_step(), error=f"{type(error).__name__}: {error}"[:500])

    def _find_out_about_the_last_one(self) -> None:
        events = [event["event"] for event in read_events(self.run_dir)]
        marks = [event for event in events if event in ("started", "ended", "died", "killed")]
        if marks and marks[-1] == "started":
            self.log.event("killed", step=self._last_step())

    def _last_step(self) -> int:
        return max((line["step"] for line in read_metrics(self.run_dir)), default=0)


def _repeated_death(run_dir: Path) -> tuple[int, str] | None:
    """The step at which the last processes died, and of what the very last; None if it was not always the same."""
    ends = [event for event in read_events(run_dir) if event["event"] in ("ended", "died", "restart loop")]
    last = ends[-MOST_DEATHS:]
    if len(last) < MOST_DEATHS or any(end["event"] != "died" for end in last) or len({e.get("step") for e in last}) > 1:
        return None
    return last[-1]["step"], last[-1]["error"]
