"""The learning rate is a pure function of the step."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.config import ScheduleConfig
from gpt_cli.training.schedule import lr_multiplier, schedule_warning

KINDS = ["cosine", "linear", "wsd", "constant"]
kinds = pytest.mark.parametrize("kind", KINDS)


def curve(steps: int, **changes: object) -> list[float]:
    config = ScheduleConfig(**{"warmup_steps": 10, "min_lr_ratio": 0.1} | changes)
    return [lr_multiplier(step, steps, config) for step in range(steps + 1)]


@kinds
def test_warm_up_rises_evenly_from_above_zero_to_the_peak(kind):
    rates = curve(100, kind=kind)
    assert rates[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert max(rates) == 1.0


@kinds
def test_after_the_warm_up_it_never_rises_and_ends_at_the_minimum(kind):
    rates = curve(100, kind=kind)[10:]
    assert all(a >= b for a, b in itertools.pairwise(rates))
    assert rates[-1] == pytest.approx(1.0 if kind == "constant" else 0.1)


def test_each_kind_has_its_textbook_value_halfway():
    assert curve(110, kind="cosine")[60] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2)
    assert curve(110, kind="linear")[60] == pytest.approx(0.55)
    assert curve(100, kind="wsd", decay_fraction=0.2)[80:91:10] == pytest.approx([1.0, 0.55])
    assert curve(100, kind="constant")[99] == 1.0


@given(
    steps=st.integers(1, 500),
    warmup=st.integers(0, 600),
    kind=st.sampled_from(KINDS),
    low=st.floats(0, 1),
    fraction=st.floats(0.01, 1),
)
def test_every_update_has_a_rate_above_zero_and_at_most_the_peak(steps, warmup, kind, low, fraction):
    config = ScheduleConfig(kind=kind, warmup_steps=warmup, min_lr_ratio=low, decay_fraction=fraction)
    assert all(0 < lr_multiplier(step, steps, config) <= 1 for step in range(steps))


@pytest.mark.parametrize(
    ("steps", "kind", "words"),
    [
        (0, "wsd", None),
        (19, "wsd", "90% of its peak at the end: schedule.warmup_steps is 20"),
        (20, "wsd", "95% of its peak at the end: schedule.warmup_steps is 20"),
        (20, "cosine", "95% of its peak at the end: schedule.warmup_steps is 20"),
        (24, "wsd", "falls in 4 steps, not in 12: schedule.warmup_steps is 20"),
        (26, "wsd", "falls in 6 steps, not in 13: schedule.warmup_steps is 20"),
        (27, "wsd", None),
        (24, "linear", None),
        (40, "wsd", None),
    ],
)
def test_a_run_without_room_for_its_schedule_is_told_so(steps, kind, words):
    assert schedule_warning(steps, ScheduleConfig(kind=kind, warmup_steps=20, decay_fraction=0.5)) == words
