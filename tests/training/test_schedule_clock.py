"""Under a budget a run goes through its whole schedule, however slow the machine becomes; else a step is a step."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.config import TrainConfig
from gpt_cli.training.schedule_clock import OVERRUN, ScheduleClock

SECONDS = 100.0
BUDGET = TrainConfig(steps=1000, budget="100s", max_minutes=OVERRUN * SECONDS / 60.0)


def go(clock: ScheduleClock, times: list[float], start: int = 0, seconds: float = 0.0) -> tuple[list[float], float]:
    """The positions of the updates that a run makes whose steps take these times, and when it ends."""
    positions = []
    for step, duration in enumerate(times, start=start):
        clock.advance_to(step, seconds)
        if clock.is_over:
            break
        positions.append(clock.position)
        seconds += duration
    return positions, seconds


@pytest.mark.parametrize("config", [TrainConfig(steps=1000), TrainConfig(steps=1000, max_minutes=1.0), BUDGET])
def test_where_there_is_time_a_step_is_a_step_exactly(config):
    clock = ScheduleClock(config, 0, {})
    assert go(clock, [0.05] * 2000)[0] == list(range(1000))
    assert clock.state() == {}


@pytest.mark.parametrize("config", [TrainConfig(steps=1000), TrainConfig(steps=1000, max_minutes=1.0)])
def test_without_a_budget_slow_steps_change_nothing(config):
    assert go(ScheduleClock(config, 0, {}), [5.0] * 2000)[0] == list(range(1000))


@given(st.floats(0.12, 1.0), st.integers(0, 900))
def test_on_a_machine_that_becomes_slow_the_schedule_ends_when_the_time_does(slow, when):
    quick = 0.09
    clock = ScheduleClock(BUDGET, 0, {})
    positions, ended = go(clock, [quick] * when + [slow] * 2000)
    assert clock.is_over
    assert all(after - before >= 1.0 for before, after in pairwise(positions))
    assert ended <= SECONDS + 12 * slow
    unused = SECONDS - ended
    assert unused < 0.1 * SECONDS or len(positions) >= 999  # the time is used


def test_a_machine_that_recovers_goes_on_step_by_step():
    times = [0.09] * 100 + [0.3] * 100 + [0.02] * 2000
    positions, _ = go(ScheduleClock(BUDGET, 0, {}), times)
    assert positions[-1] - positions[-2] == 1.0


def test_a_resumed_run_goes_on_where_it_was_in_its_schedule():
    clock = ScheduleClock(BUDGET, 0, {})
    positions, seconds = go(clock, [0.2] * 300)
    saved_state = clock.state()
    assert saved_state == {"schedule_position": positions[-1]}
    resumed = ScheduleClock(BUDGET, 299, saved_state)
    resumed_positions, ended = go(resumed, [0.2] * 2000, 299, seconds - 0.2)
    assert resumed_positions[0] == positions[-1]
    assert resumed.is_over
    assert ended <= SECONDS + 3
    assert ScheduleClock(TrainConfig(steps=1000), 299, saved_state).position == 299


@pytest.mark.parametrize("saved_position", ["x", None, -5, 1e9, True, [1]])
def test_a_position_that_cannot_be_is_that_of_the_step(saved_position):
    assert ScheduleClock(BUDGET, 7, {"schedule_position": saved_position}).position == 7
