"""The end of a run: at its last step, on a signal, out of time, at a loss, or without further improvement."""

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from gpt_cli.config import TrainConfig
from gpt_cli.runtime.signals import StopRequest
from gpt_cli.training.schedule_clock import ScheduleClock

_SIGNAL = "interrupted"


class Decision(Enum):
    """The answer of `Stopping`: train on, end the run by its own rule, or only save, on a signal, to be resumed."""

    CONTINUE = "continue"
    FINISH = "finish"
    INTERRUPT = "interrupt"


class Stopping:
    """Decides when a run stops, for which `reason`, and by which `key` of the config that could be lifted.

    After a resume, the best loss so far comes from the `saved` state of the checkpoint; of older versions, from the
    `past_val_losses` of the log.
    """

    def __init__(
        self,
        config: TrainConfig,
        request: StopRequest,
        past_val_losses: Iterable[float] = (),
        clock: ScheduleClock | None = None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.clock = clock or ScheduleClock(config, 0, {})
        self.request = request
        self.best_val_loss: float | None = None
        self.evaluations_since_best = 0
        self.reason: str | None = None
        self.key: str | None = None
        for val_loss in past_val_losses:
            self.record_eval(val_loss)
        best, since = ((saved or {}).get(key) for key in self.state())
        if isinstance(best, float) and isinstance(since, int):
            self.best_val_loss, self.evaluations_since_best = best, since

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs to decide as this one."""
        best = self.best_val_loss if self.best_val_loss is not None and math.isfinite(self.best_val_loss) else None
        return {"best_val_loss": best, "evaluations_since_best": self.evaluations_since_best}

    def update(self, step: int, seconds: float) -> Decision:
        """Advance the clock to `step`, after `seconds` of training: the decision at that step."""
        minutes = self.config.max_minutes
        self.clock.advance_to(step, seconds)
        if self.reason is None and step >= self.config.steps:
            self.reason = f"all {step:,} steps are done" if step != 1 else "the only step is done"
        elif self.reason is None and self.clock.is_over:
            self.reason = (
                f"train.budget ({self.config.budget}) is used up: {step:,} steps of {self.config.steps:,}, which"
                " went through the whole schedule"
            )
        elif self.reason is None and minutes is not None and seconds >= 60.0 * minutes:
            if self.config.budget is None:
                self.key, self.reason = "train.max_minutes", f"train.max_minutes ({minutes:g}) is over"
            else:  # which chose max_minutes
                self.reason = f"train.budget ({self.config.budget}) is used up"
        elif self.reason is None and self.request.signal is not None:
            self.reason = _SIGNAL
        return self.decision

    @property
    def decision(self) -> Decision:
        """INTERRUPT only if a signal is the sole reason to stop."""
        if self.reason is None:
            return Decision.CONTINUE
        return Decision.INTERRUPT if self.reason == _SIGNAL else Decision.FINISH

    def is_best(self, val_loss: float | None) -> bool:
        """True if the loss just evaluated, if any was, is the best so far."""
        return val_loss is not None and val_loss == self.best_val_loss

    def record_eval(self, val_loss: float) -> Decision:
        """Record an evaluation, which may be a reason to stop: the decision after it."""
        if self.best_val_loss is None or val_loss < self.best_val_loss:
            self.best_val_loss, self.evaluations_since_best = val_loss, 0
        else:
            self.evaluations_since_best += 1
        until, patience = self.config.until_loss, self.config.patience
        if until is not None and val_loss <= until:
            self.key = "train.until_loss"
            self.reason = f"validation loss {val_loss:.4f} has reached train.until_loss ({until:g})"
        elif patience is not None and self.evaluations_since_best >= patience:
            self.key = "train.patience"
            self.reason = f"no better validation loss in train.patience ({patience}) evaluations"
        return self.decision
