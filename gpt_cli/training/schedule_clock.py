"""The position in the learning-rate schedule: it advances by one a step, or faster if a time budget would end first.

On a machine that has become busy, steps take longer than was measured. A run that is cut off by its budget amid the
decay has a higher loss than a shorter one with the whole schedule. So under a budget the position advances by as much
a step as brings it to its end when the time is over: by exactly one where time suffices.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from gpt_cli.config import TrainConfig

_WINDOW = 0.1  # of the run: the last steps, whose mean time predicts that of the next
_RESERVE = 0.03  # of the time, for the last evaluation and checkpoint
_WARMUP = 3  # first steps of a process that are not timed: they allocate and compile
_KEY = "schedule_position"

OVERRUN = 1.1
"""`train.max_minutes` is the budget times this: it ends a run that is late in spite of a faster schedule."""


class ScheduleClock:
    """The schedule's `position`, in steps of the config, from 0 to `train.steps`."""

    def __init__(self, config: TrainConfig, start: int, state: Mapping[str, Any]) -> None:
        """The clock of a run that is resumed at step `start` from the checkpoint `state`."""
        self.steps, self.start = config.steps, start
        has_budget = config.budget is not None and config.max_minutes is not None
        self._end = (1.0 - _RESERVE) * 60.0 * (config.max_minutes or 0.0) / OVERRUN if has_budget else None
        position: Any = state.get(_KEY) if has_budget else None
        is_valid = isinstance(position, int | float) and start <= position <= self.steps
        self.position = float(position) if is_valid else float(start)
        self._step = start
        self._times: deque[tuple[int, float]] = deque(maxlen=max(2, int(_WINDOW * config.steps)))

    def advance_to(self, step: int, seconds: float) -> None:
        """Advance to update `step` (from 0), after `seconds` of training, resumes included: once for each step."""
        if step > self._step:
            self.position = min(float(self.steps), self.position + self._stride(step, seconds))
            self._step = step
        if step >= self.start + _WARMUP:
            self._times.append((step, seconds))

    @property
    def is_over(self) -> bool:
        """True if the schedule has ended."""
        return self.position >= self.steps

    def _stride(self, step: int, seconds: float) -> float:
        if self._end is None or len(self._times) < 2:
            return 1.0
        (first, earlier), (last, now) = self._times[0], self._times[-1]
        seconds_per_step = (now - earlier) / (last - first)
        steps_left = (self._end - seconds) / max(1e-9, seconds_per_step)
        return max(1.0, (self.steps - self.position) / max(1.0, steps_left))

    def state(self) -> dict[str, float]:
        """The entries of a checkpoint's state.json; none while the position is the step."""
        return {} if self.position == self._step else {_KEY: self.position}
