"""Of several ways to compute the same, the fastest that does compute the same is taken, whatever the others do."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.runtime import fastest as room
from gpt_cli.runtime.fastest import difference, fastest
from gpt_cli.runtime.late import Late, sent

RIGHT = [torch.tensor(2.0), torch.tensor([1.0, -3.0])]


class Machine:
    """A clock that goes on only while a candidate computes, and only once the device was waited for."""

    def __init__(self):
        self.now, self.queued = 0.0, 0.0

    def candidate(self, seconds, result=RIGHT, fails_at=None):
        calls = 0

        def compute():
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise RuntimeError("no kernel for this shape\nand a page of reasons")
            self.queued += seconds
            return result

        return compute

    def wait(self):
        self.now, self.queued = self.now + self.queued, 0.0

    def fastest(self, **candidates):
        return fastest(candidates, self.wait, tolerance=0.01, clock=lambda: self.now)


@given(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_what_is_taken_is_as_fast_as_any_and_plainer_than_what_is_as_fast(seconds):
    machine = Machine()
    found = machine.fastest(**{str(i): machine.candidate(s) for i, s in enumerate(seconds)})
    best, taken = min(seconds), int(found.name)
    assert seconds[taken] <= best * 1.031
    assert all(s > best * 1.029 for s in seconds[:taken])
    assert list(found.seconds.values()) == pytest.approx(seconds)
    assert found.dropped == {}


@pytest.mark.parametrize("fails_at", [1, 3, 4, 7, 13])
def test_a_candidate_that_raises_is_dropped_whenever_it_does(fails_at):
    machine = Machine()
    found = machine.fastest(plain=machine.candidate(2.0), broken=machine.candidate(0.1, fails_at=fails_at))
    assert found.name == "plain"
    assert found.dropped == {"broken": "no kernel for this shape"}
    assert found.seconds.keys() == {"plain"}


@pytest.mark.parametrize("fails_at", [1, 4])
def test_what_the_plain_one_raises_is_raised(fails_at):
    machine = Machine()
    with pytest.raises(RuntimeError, match="no kernel"):
        machine.fastest(plain=machine.candidate(2.0, fails_at=fails_at), other=machine.candidate(1.0))


@pytest.mark.parametrize(
    "wrong",
    [
        [torch.tensor(2.0), torch.tensor([1.0, -3.2])],
        [torch.tensor(2.0), torch.tensor([1.0, math.nan])],
        [torch.tensor(2.0), torch.tensor([1.0, math.inf])],
        [torch.tensor(2.0), torch.tensor([1.0, -3.0, 0.0])],
        [torch.tensor(2.0)],
    ],
)
def test_a_candidate_that_computes_something_else_is_never_taken(wrong):
    machine = Machine()
    found = machine.fastest(plain=machine.candidate(2.0), wrong=machine.candidate(0.1, wrong))
    assert found.name == "plain"
    assert found.dropped["wrong"].startswith("it differs by")


def test_rounding_is_no_difference_and_a_zero_need_not_be_one():
    expected = [torch.tensor(100.0), torch.zeros(3), torch.ones(2)]
    assert difference([torch.tensor(100.001), torch.full((3,), 1e-4), torch.ones(2)], expected) < 0.01
    assert difference([torch.tensor(100.0), torch.full((3,), 1.0), torch.ones(2)], expected) > 1.0
    assert difference([torch.zeros(2)], [torch.zeros(2)]) == 0.0
    assert not difference([torch.ones(2)], [torch.zeros(2)]) <= 0.01


def test_the_line_says_what_was_found():
    machine = Machine()
    found = machine.fastest(
        plain=machine.candidate(0.004),
        quick=machine.candidate(0.00125),
        slow=machine.candidate(0.5),
        broken=machine.candidate(1.0, fails_at=1),
    )
    line = "quick 1.25 ms, plain 4.00 ms, slow 500.00 ms; not broken: no kernel for this shape"
    assert found.describe() == line


def test_a_candidate_that_is_slow_once_is_not_slow(monkeypatch):
    machine = Machine()
    hiccup = iter([0.0] * room._WARM_UPS + [0.0, 9.0] + [0.0] * 100)

    def sometimes_slow():
        machine.queued += 0.1 + next(hiccup)
        return RIGHT

    assert machine.fastest(plain=machine.candidate(0.2), other=sometimes_slow).name == "other"


def test_late_numbers_are_those_of_when_they_were_sent():
    numbers = torch.tensor([1.5, 2.5])
    late = Late(numbers)
    numbers.zero_()
    assert late.read() == [1.5, 2.5]


def test_indices_arrive_as_they_are():
    assert sent([3, 2**40], torch.device("cpu")).tolist() == [3, 2**40]
