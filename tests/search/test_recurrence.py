"""The share of a text that repeats what stood some tokens before is the one that its definition counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.search import recurrence
from gpt_cli.search.recurrence import NOTHING_RECURS, measure_recurrence


def counted(ids: list[int], matched: int, distance: int) -> float:
    """By the definition: tokens that end a run whose last occurrence was at most `distance` tokens before."""
    ends = range(matched, len(ids) + 1)
    runs = [tuple(ids[end - matched : end]) for end in ends]
    recurring = sum(runs[at] in runs[max(0, at - distance) : at] for at in range(len(runs)))
    return recurring / max(1, len(ids))


@given(st.lists(st.integers(0, 2), max_size=120), st.integers(1, 6), st.integers(1, 130), st.booleans())
def test_it_is_what_the_definition_counts(ids, matched, distance, is_subword):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence, "MATCHED_SUBWORDS" if is_subword else "MATCHED_CHARACTERS", matched)
        found = measure_recurrence(np.array(ids, dtype=np.uint16), is_subword=is_subword)
    assert found.within(distance) == pytest.approx(counted(ids, matched, distance))


@given(st.integers(100, 4_000), st.integers(0, 2**32 - 1))
def test_of_a_text_that_comes_twice_half_recurs_from_its_length_on(length, seed):
    once = np.random.default_rng(seed).integers(0, 50_000, length).astype(np.uint16)
    found = measure_recurrence(np.concatenate([once, once]))
    assert found.within(length - 1) < 0.01
    assert found.within(length) == pytest.approx(0.5, abs=0.1)
    assert found.within(10 * length) >= found.within(length)


def test_a_long_text_is_judged_by_parts_that_are_spread_over_it(monkeypatch):
    monkeypatch.setattr(recurrence, "_SAMPLED", 40_000)
    draw = np.random.default_rng(0)
    fresh = draw.integers(0, 50_000, 50_000).astype(np.uint16)
    repeated = np.tile(draw.integers(0, 50_000, 100).astype(np.uint16), 500)
    for halves in ((fresh, repeated), (repeated, fresh)):
        assert measure_recurrence(np.concatenate(halves)).within(100) == pytest.approx(0.5, abs=0.02)
    assert measure_recurrence(fresh).within(4_096) < 0.01


def test_examples_recur_in_nothing_and_an_empty_text_is_no_error():
    assert NOTHING_RECURS.within(1_024) == 0.0
    assert measure_recurrence(np.zeros(0, dtype=np.uint16)).within(1_024) == 0.0
