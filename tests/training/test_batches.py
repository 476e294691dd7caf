"""Batches are a pure function of (seed, step)."""

import itertools
import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.config import Config, parse_config
from gpt_cli.distributed.world import World
from gpt_cli.errors import RequestError
from gpt_cli.shuffle import windows_per_epoch
from gpt_cli.training.batches import Batches, batch_refusal, micro_batch_size, refuse_batch
from gpt_cli.training.device_tokens import DeviceTokens

CPU = torch.device("cpu")
IDS = np.arange(1000, dtype=np.uint16)
TOKENS = DeviceTokens(IDS, CPU)


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
    if dtype == np.uint32:
        stored //= 2  # no vocabulary has more than 2**31 ids
    batches = make(tokens=DeviceTokens(stored.astype(dtype), CPU))
    assert batches.tokens.ids.nbytes == 1000 * np.dtype(dtype).itemsize
    expected = [stored[start : start + 16].tolist() for start in batches.offsets(3)]
    assert joined(batches, 3).tolist() == expected
    assert batches.tokens.span(990, 1000).tolist() == stored[990:].tolist()


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
        tokens=DeviceTokens(IDS[:n_token], CPU),
        context_length=context_length,
        batch_size=batch_size,
        micro_batch_size=batch_size,
        seed=seed,
    )
    n = windows_per_epoch(n_token, context_length)
    starts = [start for step in range(-(-3 * n // batch_size)) for start in batches.offsets(step)][: 3 * n]
    for epoch in range(3):
        visited = sorted(starts[epoch * n : (epoch + 1) * n])
        assert [b - a for a, b in itertools.pairwise(visited)] == [context_length] * (n - 1)
        assert visited[0] >= 0
        assert visited[-1] + context_length < n_token


def test_almost_every_token_of_the_text_is_trained_on_in_each_epoch():
    assert windows_per_epoch(1000, 16) * 16 >= 1000 - 2 * 16


def test_the_phase_and_the_order_of_the_windows_change_from_epoch_to_epoch():
    batches = make()
    n = windows_per_epoch(len(batches.tokens), batches.context_length)
    starts = [start for step in range(6 * n // 12 + 1) for start in batches.offsets(step)]
    epochs = [starts[epoch * n : (epoch + 1) * n] for epoch in range(6)]
    assert len({min(epoch) for epoch in epochs}) > 2
    assert len({tuple(start - min(epoch) for start in epoch) for epoch in epochs}) == 6


def test_the_order_of_data_never_changes_between_versions():
    # A run resumed by a later version must see what it would have seen: change this list only with a format version.
    assert make().offsets(0) == [560, 496, 736, 16, 0, 448, 928, 368, 800, 688, 480, 336]
    assert make(seed=0).offsets(1000)[:4] == [513, 17, 433, 801]


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 4, 6])
def test_the_global_batch_does_not_depend_on_the_micro_batch_size(micro_batch_size):
    for step in (0, 17):
        micro_batches = make(micro_batch_size=micro_batch_size).at(step)
        assert [len(inputs) for inputs, _ in micro_batches] == [micro_batch_size] * (12 // micro_batch_size)
        assert torch.cat([inputs for inputs, _ in micro_batches]).equal(joined(make(), step))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_ranks_of_any_world_size_share_the_global_batch_among_them(world_size):
    ranks = [make(micro_batch_size=1, world=World(rank, world_size)) for rank in range(world_size)]
    rows = [tuple(row.tolist()) for rank in ranks for row in joined(rank, 3)]
    assert Counter(rows) == Counter(tuple(row.tolist()) for row in joined(make(), 3))


def test_a_text_shorter_than_one_window_and_its_target_is_refused():
    with pytest.raises(RequestError, match="16 tokens: too few for one window"):
        make(tokens=DeviceTokens(IDS[:16], CPU))
    make(tokens=DeviceTokens(IDS[:17], CPU))
    assert windows_per_epoch(17, 16) == 1


@given(batch_size=st.integers(1, 60), per_batch=st.none() | st.integers(1, 60), devices=st.integers(2, 9))
def test_each_way_out_of_a_batch_that_devices_do_not_fill_leads_out(batch_size, per_batch, devices):
    micro = None if per_batch is None else max(1, batch_size // per_batch)
    micro = None if micro is None or batch_size % micro else micro
    config = config_of(batch_size, micro)
    rows = micro_batch_size(config, World(0, devices))
    refused = batch_refusal(batch_size, rows, devices, micro)
    assert (refused is None) is (batch_size % (rows * devices) == 0)
    if refused is None:
        return
    keys = {key: int(n) for key, n in re.findall(r"train\.(\w+)=(\d+)", refused[1])}
    assert keys
    world, followed = (
        World(0, devices),
        config_of(keys.get("batch_size", batch_size), keys.get("micro_batch_size", micro)),
    )
    refuse_batch(followed, micro_batch_size(followed, world), world)
    for proposed in map(int, re.findall(r"--devices (\d+)", refused[1])):
        assert proposed < devices
        refuse_batch(config, micro_batch_size(config, World(0, proposed)), World(0, proposed))


def config_of(batch_size: int, micro: int | None) -> Config:
    """Raises RequestError where the schema refuses the sizes."""
    sizes = [f"train.batch_size={batch_size}", f"train.micro_batch_size={'null' if micro is None else micro}"]
    return parse_config("", "t", sizes)


@given(starts=st.lists(st.integers(0, 983), min_size=1, max_size=9), length=st.integers(1, 17))
def test_windows_are_those_of_the_array_wherever_its_ids_are(starts, length):
    ids = np.arange(1000, dtype=np.uint16)[::-1] + np.uint16(64_536)
    expected = torch.from_numpy(np.stack([ids[start : start + length] for start in starts]).astype(np.int64))
    resident = DeviceTokens(np.ascontiguousarray(ids), CPU)
    assert resident.windows(starts, length).equal(expected)
    # The meta device stands for one that is not the host: shapes, dtype and place of what is copied to it.
    copied = DeviceTokens(np.ascontiguousarray(ids), torch.device("meta"), resident=False).windows(starts, length)
    assert (copied.shape, copied.dtype, copied.device.type) == (expected.shape, torch.int64, "meta")


@pytest.mark.parametrize(("memory", "resident"), [(20_000.0, True), (19_999.0, False)])
def test_ids_are_kept_on_a_device_only_where_they_take_a_small_share_of_its_memory(monkeypatch, memory, resident):
    monkeypatch.setattr("gpt_cli.training.device_tokens.device_memory", lambda device: memory)
    tokens = DeviceTokens(IDS, torch.device("meta"))
    assert tokens.ids.nbytes == 2_000  # two bytes each
    assert (tokens.ids.device.type == "meta") == resident
