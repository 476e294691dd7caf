"""Each filter equals its definition written out, and drawing with Gumbel noise draws from the softmax.

A vocabulary is given by integer weights: token i has the probability weights[i] / sum(weights), so that the
references are exact and thresholds can be chosen between, not on, what is compared with them.
"""

import math
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt_cli.errors import RequestError
from gpt_cli.sampling.filters import (
    GumbelNoise,
    block_size,
    filter_logits,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    next_token,
)
from gpt_cli.sampling.sampling_params import SamplingParams

CPU = torch.device("cpu")
WEIGHTS = st.lists(st.integers(1, 20), min_size=1, max_size=12)


def to_logits(weights: Iterable[int], shift: float = 0.0) -> Tensor:
    """(1, V) unnormalised logits; a weight of 0 is a token that is already filtered."""
    return torch.tensor([[math.log(w) + shift if w else -math.inf for w in weights]])


def survivors(logits: Tensor) -> list[bool]:
    return [logit > -math.inf for logit in logits[0].tolist()]


def reference_top_k(weights: list[int], k: int) -> list[int]:
    return [w if sum(other > w for other in weights) < k else 0 for w in weights]


def reference_top_p(weights: list[int], p: float) -> list[int]:
    total = sum(weights)
    return [w if sum(other for other in weights if other > w) < p * total else 0 for w in weights]


def reference_min_p(weights: list[int], p: float) -> list[int]:
    return [w if w >= p * max(weights) else 0 for w in weights]


@given(WEIGHTS, st.integers(1, 15))
def test_top_k_keeps_the_tokens_that_fewer_than_k_others_beat(weights: list[int], k: int) -> None:
    assert survivors(keep_top_k(to_logits(weights), k)) == list(map(bool, reference_top_k(weights, k)))


@given(WEIGHTS, st.data())
def test_top_p_keeps_the_smallest_likeliest_set_that_has_the_probability(
    weights: list[int], data: st.DataObject
) -> None:
    p = (data.draw(st.integers(0, sum(weights) - 1)) + 0.5) / sum(weights)
    filtered = keep_top_p(to_logits(weights, shift=3.0), p)
    assert survivors(filtered) == list(map(bool, reference_top_p(weights, p)))
    assert filtered.exp().sum() >= p * sum(weights)


def test_a_fraction_that_fp32_cannot_hold_keeps_one_token() -> None:
    assert survivors(keep_top_p(to_logits([3, 1, 2]), 1e-300)).count(True) == 1


@given(WEIGHTS, st.data())
def test_min_p_keeps_what_is_at_least_that_fraction_as_likely_as_the_likeliest(
    weights: list[int], data: st.DataObject
) -> None:
    p = (data.draw(st.integers(0, max(weights) - 1)) + 0.5) / max(weights)
    assert survivors(keep_min_p(to_logits(weights, shift=-7.0), p)) == list(map(bool, reference_min_p(weights, p)))


@given(WEIGHTS, st.integers(1, 15), st.data())
def test_filters_in_turn_each_see_the_renormalised_rest(weights: list[int], k: int, data: st.DataObject) -> None:
    after_k = reference_top_k(weights, k)
    p = (data.draw(st.integers(0, sum(after_k) - 1)) + 0.5) / sum(after_k)
    after_p = reference_top_p(after_k, p)
    m = (data.draw(st.integers(0, max(weights) - 1)) + 0.5) / max(weights)
    expected = reference_min_p(after_p, m)
    sampling = SamplingParams(temperature=1.0, top_k=k, top_p=p, min_p=m)
    assert survivors(filter_logits(to_logits(weights), sampling)) == list(map(bool, expected))


@given(
    st.lists(st.integers(-10_000, 10_000).map(lambda i: i / 64), min_size=1, max_size=50),
    st.none() | st.integers(1, 60),
    st.none() | st.sampled_from([1e-6, 0.01, 0.3, 0.9, 0.999, 1.0]),
    st.none() | st.sampled_from([1e-6, 0.01, 0.3, 0.9, 1.0]),
    st.sampled_from([1e-5, 0.1, 0.7, 1.0, 30.0]),
)
def test_the_likeliest_token_survives_any_filters_and_what_survives_keeps_its_logit(
    logits: list[float], top_k: int | None, top_p: float | None, min_p: float | None, temperature: float
) -> None:
    before = torch.tensor([logits])
    after = filter_logits(before, SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p))
    scaled = before / temperature
    assert after.max() == scaled.max()
    assert torch.equal(after, torch.where(after > -math.inf, scaled, after))


def test_rows_of_a_batch_are_filtered_each_by_itself() -> None:
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    sampling = SamplingParams(top_k=9, top_p=0.8, min_p=0.05)
    alone = torch.cat([filter_logits(row[None], sampling) for row in rows])
    assert torch.equal(filter_logits(rows, sampling), alone)


def test_a_filter_that_lets_everything_through_changes_nothing() -> None:
    logits = torch.randn(2, 50_000, generator=torch.Generator().manual_seed(1)) * 4
    assert torch.equal(keep_top_k(logits, 50_000), logits)
    assert torch.equal(keep_top_p(logits, 1.0), logits)
    assert torch.equal(filter_logits(logits, SamplingParams(temperature=1.0)), logits)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_those_of_the_softmax_at_the_temperature(temperature: float) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]])
    n = 50_000
    noise = GumbelNoise(7, 1, 5, CPU)
    sampling = SamplingParams(temperature=temperature)
    drawn = torch.cat([noise.draw() for _ in range(n)])
    counts = next_token(logits.expand(n, -1), sampling, drawn).bincount(minlength=5)
    expected = n * (logits[0].double() / temperature).softmax(-1)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 18.47  # the 99.9 % quantile at 4 degrees of freedom


def test_a_filtered_token_is_never_drawn() -> None:
    noise = GumbelNoise(3, 10, 4, CPU)
    sampling = SamplingParams(temperature=5.0, top_k=2)
    logits = torch.tensor([[1.0, 3.0, 0.9, 2.0]]).expand(10, -1)
    drawn = {token for _ in range(1000) for token in next_token(logits, sampling, noise.draw()).tolist()}
    assert drawn == {1, 3}


def test_greedy_takes_the_likeliest_token() -> None:
    logits = torch.randn(6, 30, generator=torch.Generator().manual_seed(2))
    assert torch.equal(next_token(logits, SamplingParams(temperature=0.0), None), logits.argmax(-1))
    assert SamplingParams(temperature=1e-30).greedy


def test_the_noise_of_a_sample_depends_on_neither_the_batch_nor_its_place_in_it() -> None:
    vocab_size = 1_300  # 3 steps a block, so that 8 steps cross its border
    alone = GumbelNoise(5, 1, vocab_size, CPU)
    beside = GumbelNoise(5, 3, vocab_size, CPU)
    for _ in range(8):
        mine, all_of_them = alone.draw(), beside.draw()
        assert torch.equal(mine[0], all_of_them[0])
        assert not torch.equal(all_of_them[0], all_of_them[1])


def test_on_a_gpu_noise_is_drawn_in_the_blocks_that_its_texts_depend_on() -> None:
    assert {block_size(torch.device(kind)) for kind in ("cuda", "mps")} == {2**16}
    assert block_size(CPU) < 2**16


@pytest.mark.parametrize("vocab_size", [5, 65, 300, 5_000])
def test_on_a_cpu_noise_does_not_depend_on_the_blocks_it_is_drawn_in(
    vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = GumbelNoise(5, [0, 3], vocab_size, CPU)
    monkeypatch.setattr("gpt_cli.sampling.filters.CPU_BLOCK", 2**16)
    longer = GumbelNoise(5, [0, 3], vocab_size, CPU)
    assert all(torch.equal(noise.draw(), longer.draw()) for _ in range(100))


def test_noise_differs_between_seeds_and_steps() -> None:
    noise, reseeded = GumbelNoise(5, 1, 100, CPU), GumbelNoise(6, 1, 100, CPU)
    first = noise.draw().clone()
    assert not torch.equal(first, reseeded.draw())
    assert not torch.equal(first, noise.draw())


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-24])
def test_noise_is_finite_at_both_ends_of_the_generator(uniform: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform))
    assert GumbelNoise(1, 2, 10, CPU).draw().isfinite().all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", -1),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("min_p", math.nan),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_a_setting_outside_its_range_is_refused_by_name_and_value(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=f"{name} must be .*, not {value}".replace("+", r"\+")):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop must be a text of at least one character"):
        SamplingParams(stop=("END", ""))


def test_changed_settings_leave_the_others_and_one_stop_string_needs_no_list() -> None:
    before = SamplingParams(top_k=5, seed=3)
    assert before.replace({"stop": "END", "top_k": None}) == SamplingParams(seed=3, stop=("END",))
    assert before.replace({"stop": ["a", "b"]}).stop == ("a", "b")
    assert before.replace({}) == before
