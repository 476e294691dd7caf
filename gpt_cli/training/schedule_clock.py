"""The clock of the schedule: it goes on by a step a step, or faster where a time budget would end first.

A machine that becomes busy takes longer than it was measured to. A run that a budget then cuts off ends amid its decay,
and so at a higher loss than a shorter one with the whole schedule. So under a budget each step goes on in the schedule
by as much as brings it to its end when the time is over. Where time suffices that is one step exactly.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from gpt_cli.config import TrainConfig

_WINDOW = 0.1  # of the run: the steps whose time tells what the next ones take
_RESERVE = 0.03  # of the time, for the last evaluation and checkpoint
_SKIPPED = 3  # steps of a process that say nothing: they allocate and compile
_KEY = "schedule_position"

OVERRUN = 1.1
"""Times what is left of a budget is `train.max_minutes`, which ends a run that no hurry brings to its end in time."""


class ScheduleClock:
    """The place in the schedule of each step. `position` counts in steps of the config, from 0 to `train.steps`."""

    def __init__(self, config: TrainConfig, start: int, state: Mapping[str, Any]) -> None:
        """The clock of a run that goes on from step `start`, where `state` was saved."""
        self.steps, self.start = config.steps, start
        hurries = config.budget is not None and config.max_minutes is not None
        self._end = (1.0 - _RESERVE) * 60.0 * (config.max_minutes or 0.0) / OVERRUN if hurries else None
        kept = state.get(_KEY) if hurries else None
        self.position = float(kept) if isinstance(kept, int | float) and start <= kept <= self.steps else float(start)
        self._step = start
        self._times: deque[tuple[int, float]] = deque(maxlen=max(2, int(_WINDOW * config.steps)))

    def advance_to(self, step: int, seconds: float) -> float:
        """Go on to update `step` (from 0), after `seconds` of training over all processes; returns its place.

        To be called once for each step.
        """
        if step > self._step:
            self.position = min(float(self.steps), self.position + self._stride(step, seconds))
            self._step = step
        if step >= self.start + _SKIPPED:
            self._times.append((step, seconds))
        return self.position

    @property
    def is_over(self) -> bool:
        """True if the schedule has come to its end."""
        return self.position >= self.steps

    def _stride(self, step: int, seconds: float) -> float:
        if self._end is None or len(self._times) < 2:
            return 1.0
        (first, then), (last, now) = self._times[0], self._times[-1]
        each = (now - then) / (last - first)
        possible = (self._end - seconds) / max(1e-9, each)
        return max(1.0, (self.steps - self.position) / max(1.0, possible))

    def kept(self) -> dict[str, float]:
        """The clock's entries in a checkpoint; none while it equals the step."""
        return {} if self.position == self._step else {_KEY: self.position}
