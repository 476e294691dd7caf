"""Batches are a pure function of (seed, step)."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.errors import RequestError
from gpt_cli.order import permuted
from gpt_cli.training.batches import Batches, on_device
from gpt_cli.training.epoch import epoch_starts, fits_on_device, permutation

TOKENS = torch.arange(1000, dtype=torch.int32)


def make(**changes: object) -> Batches:
    return Batches(
        **{"tokens": TOKENS, "context_length": 16, "batch_size": 12, "micro_batch_size": 12, "seed": 7} | changes
    )


def joined(batches: Batches, step: int) -> torch.Tensor:
    return torch.cat([inputs for inputs, _ in batches.at(step)])


def test_at_is_pure_and_targets_follow_their_inputs():
    batches = make()
    for step in (5, 0, 5):
        assert batches.at(step)[0][0].equal(make().at(step)[0][0])
        for inputs, targets in batches.at(step):
            assert inputs.shape == targets.shape == (12, 16)
            assert targets[:, :-1].equal(inputs[:, 1:])
            assert targets.equal(inputs + 1)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_ids_are_used_as_they_are_stored_up_to_the_largest(dtype: type[np.unsignedinteger]) -> None:
    stored = np.arange(1000, dtype=np.int64) + (np.iinfo(dtype).max - 999)
    batches = make(tokens=on_device(stored.astype(dtype), torch.device("cpu")))
    expected = make(tokens=torch.from_numpy(stored))
    assert batches.tokens.nbytes == 1000 * np.dtype(dtype).itemsize
    assert joined(batches, 3).equal(joined(expected, 3))


def test_different_seeds_and_steps_give_different_batches():
    assert not joined(make(), 0).equal(joined(make(seed=8), 0))
    assert not joined(make(), 0).equal(joined(make(), 1))


@given(
    n_token=st.integers(17, 400),
    context_length=st.integers(1, 16),
    batch_size=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_an_epoch_visits_each_of_its_windows_once_and_stays_inside_the_text(n_token, context_length, batch_size, seed):
    batches = make(
        tokens=TOKENS[:n_token],
        context_length=context_length,
        batch_size=batch_size,
        micro_batch_size=batch_size,
        seed=seed,
    )
    n = batches.windows_per_epoch
    starts = [start for step in range(-(-3 * n // batch_size)) for start in batches.starts(step)][: 3 * n]
    for epoch in range(3):
        visited = sorted(starts[epoch * n : (epoch + 1) * n])
        assert [b - a for a, b in itertools.pairwise(visited)] == [context_length] * (n - 1)
        assert visited[0] >= 0
        assert visited[-1] + context_length < n_token


def test_almost_every_token_of_the_text_is_trained_on_in_each_epoch():
    batches = make()
    assert batches.windows_per_epoch * 16 >= 1000 - 2 * 16


def test_the_phase_and_the_order_of_the_windows_change_from_epoch_to_epoch():
    batches = make()
    n = batches.windows_per_epoch
    starts = [start for step in range(6 * n // 12 + 1) for start in batches.starts(step)]
    epochs = [starts[epoch * n : (epoch + 1) * n] for epoch in range(6)]
    assert len({min(epoch) for epoch in epochs}) > 2
    assert len({tuple(start - min(epoch) for start in epoch) for epoch in epochs}) == 6


def test_the_order_of_data_never_changes_between_versions():
    # A run resumed by a later version must see what it would have seen: change this list only with a format version.
    assert make().starts(0) == [560, 496, 736, 16, 0, 448, 928, 368, 800, 688, 480, 336]
    assert make(seed=0).starts(1000)[:4] == [513, 17, 433, 801]


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 4, 6])
def test_the_global_batch_does_not_depend_on_the_micro_batch_size(micro_batch_size):
    for step in (0, 17):
        micro_batches = make(micro_batch_size=micro_batch_size).at(step)
        assert [len(inputs) for inputs, _ in micro_batches] == [micro_batch_size] * (12 // micro_batch_size)
        assert torch.cat([inputs for inputs, _ in micro_batches]).equal(joined(make(), step))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_ranks_of_any_world_size_share_the_global_batch_among_them(world_size):
    ranks = [make(micro_batch_size=1, rank=rank, world_size=world_size) for rank in range(world_size)]
    rows = [tuple(row.tolist()) for rank in ranks for row in joined(rank, 3)]
    assert Counter(rows) == Counter(tuple(row.tolist()) for row in joined(make(), 3))


def test_a_text_shorter_than_one_window_and_its_target_is_refused():
    with pytest.raises(RequestError, match="16 tokens: too few for one window"):
        make(tokens=TOKENS[:16])
    assert make(tokens=TOKENS[:17]).windows_per_epoch == 1


def test_a_batch_that_micro_batches_and_devices_do_not_fill_is_refused():
    with pytest.raises(RequestError, match="must be a multiple"):
        make(micro_batch_size=4, world_size=2)


# The order worked out in tensors, as a GPU does it


CPU = torch.device("cpu")


@given(n=st.integers(1, 1100), key=st.integers(0, 2**63 - 1))
def test_a_permutation_in_tensors_is_that_of_each_number(n, key):
    assert permutation(n, key, CPU).tolist() == [permuted(index, n, key) for index in range(n)]


@pytest.mark.parametrize("n", [20_011, 300_007, 2**18])
def test_a_permutation_of_many_in_tensors_is_that_of_each_number(n):
    found = permutation(n, 2**63 - n, CPU)  # only here do the upper bits of a product reach the numbers
    assert all(found[index] == permuted(index, n, 2**63 - n) for index in range(0, n, n // 500))


@given(
    n_token=st.integers(17, 1000),
    context_length=st.integers(1, 16),
    batch_size=st.integers(1, 30),
    seed=st.integers(0, 2**63 - 1),
    step=st.integers(0, 10**6),
)
def test_the_starts_of_a_batch_in_tensors_are_those_of_python_at_any_step(
    n_token, context_length, batch_size, seed, step
):
    batches = make(
        tokens=TOKENS[:n_token],
        context_length=context_length,
        batch_size=batch_size,
        micro_batch_size=1,
        seed=seed,
    )
    assert batches.starts_on_device(step).tolist() == batches.starts(step)


def test_a_run_that_goes_on_in_the_middle_of_an_epoch_sees_the_starts_that_it_would_have_seen():
    whole = [make().starts_on_device(step).tolist() for step in range(20)]
    epoch_starts.cache_clear()  # a new process
    assert [make().starts_on_device(step).tolist() for step in range(7, 20)] == whole[7:]


@pytest.mark.parametrize("world_size", [1, 3])
def test_batches_cut_at_starts_on_the_device_are_the_same(monkeypatch, world_size):
    plain = make(micro_batch_size=2, rank=world_size - 1, world_size=world_size)
    expected = [plain.at(step) for step in range(12)]
    monkeypatch.setattr(Batches, "starts", None)  # what a GPU does without
    for step, micro_batches in enumerate(expected):
        found = plain._cut(plain.starts_on_device(step)[plain.rank :: world_size])
        for (inputs, targets), (these, those) in zip(found, micro_batches, strict=True):
            assert inputs.equal(these)
            assert targets.equal(those)


def test_working_out_the_order_asks_the_device_for_no_number():
    starts = make(tokens=torch.zeros(1000, dtype=torch.int32, device="meta")).starts_on_device(5)
    assert (starts.shape, starts.dtype, starts.device.type) == ((12,), torch.int64, "meta")


def test_an_order_is_kept_on_the_device_while_it_is_small_and_a_batch_meets_two_epochs_at_most():
    assert fits_on_device(16 * 12 + 16, 16, 12)
    assert not fits_on_device(16 * 12 + 15, 16, 12)  # 11 windows
    assert fits_on_device(2**22, 1, 12)
    assert not fits_on_device(2**22 + 2, 1, 12)
