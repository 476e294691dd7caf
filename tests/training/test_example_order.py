"""The examples of each step: every one once an epoch, from pools that never leave it; old runs keep their order."""

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.config import load_config
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.shuffle import feistel_permute
from gpt_cli.training.example_batches import ExampleBatches, open_batches
from gpt_cli.training.example_order import ExampleOrder, example_order
from gpt_cli.training.feistel_array import permute_array
from gpt_cli.training.labelled_rows import with_labels
from tests.formats.make_2 import FOLDER

CPU = torch.device("cpu")
N = st.integers(1, 120)
BATCH_SIZE = st.integers(1, 70)
SEED = st.integers(0, 2**31)


def order_of(n: int, batch_size: int, seed: int, rules: int = 2) -> ExampleOrder:
    return example_order(rules, np.array([3 + i * 7 % 5 for i in range(n)]), batch_size, seed)


def dealt(order: ExampleOrder, steps: range, skip: int = 0) -> list[int]:
    """The examples of `steps`, without the first `skip` of each."""
    return [example for step in steps for example in order.at(step)[skip:]]


@given(n=N, batch_size=BATCH_SIZE, seed=SEED, begin=st.integers(0, 3))
def test_each_example_is_trained_on_once_an_epoch(n, batch_size, seed, begin):
    order = order_of(n, batch_size, seed)
    copies, size = divmod(batch_size, n)
    steps = n // math.gcd(n, batch_size)  # of a round: they end with an epoch
    for step in range(begin * steps, (begin + 1) * steps):
        assert len(order.at(step)) == batch_size
        assert order.at(step)[: copies * n] == list(range(n)) * copies
    examples = dealt(order, range(begin * steps, (begin + 1) * steps), copies * n)
    assert Counter(examples) == dict.fromkeys(range(n) if size else (), size // math.gcd(n, batch_size))
    for epoch, first in enumerate(range(0, len(examples), n)):
        assert sorted(examples[first : first + n]) == list(range(n)), epoch


@given(n=N, batch_size=BATCH_SIZE, seed=SEED, step=st.integers(0, 1000))
def test_a_step_has_each_example_as_often_as_any_other_or_once_more(n, batch_size, seed, step):
    counts = Counter(order_of(n, batch_size, seed).at(step))
    times = [counts[example] for example in range(n)]
    assert sum(times) == batch_size
    assert max(times) - min(times) <= 1


@given(n=st.integers(1, 2000), batch_size=BATCH_SIZE, seed=SEED, steps=st.lists(st.integers(0, 10**9), min_size=1))
def test_the_order_depends_on_the_seed_and_the_step_alone(n, batch_size, seed, steps):
    order = order_of(n, batch_size, seed)
    for step in steps:
        assert order.at(step) == order_of(n, batch_size, seed).at(step)


def test_another_seed_epoch_or_round_has_another_order():
    orders = [order_of(64, 8, seed) for seed in (0, 1)]
    epochs = [tuple(dealt(order, range(8 * e, 8 * e + 8))) for order in orders for e in range(3)]
    assert len(set(epochs)) == 6
    odd = order_of(11, 4, 0)  # rounds of 11 steps and 4 epochs
    assert len({tuple(dealt(odd, range(11 * r, 11 * r + 11))) for r in range(3)}) == 3


def test_examples_of_equal_length_meet_others_in_each_epoch():
    order = example_order(2, np.repeat([3, 9], 16), 8, 0)
    met = [{frozenset(order.at(step)) for step in range(4 * e, 4 * e + 4)} for e in range(4)]
    assert all(not a & b for a, b in itertools.combinations(met, 2))


@pytest.mark.parametrize("n", [8 * 8, 8 * 16, 8 * 40])
def test_steps_within_a_pool_have_neighbouring_lengths_and_come_in_shuffled_order(n):
    widths = np.random.default_rng(0).permutation(n)
    order = example_order(2, widths, 8, 0)
    n_pool = math.ceil(n / 8 / 16)
    for pool in range(n_pool):
        steps = range(n // 8 * pool // n_pool, n // 8 * (pool + 1) // n_pool)
        ranges = [(widths[rows].min(), widths[rows].max()) for rows in (order.at(step) for step in steps)]
        ordered = sorted(ranges)
        assert ranges != ordered
        assert all(a[1] < b[0] for a, b in itertools.pairwise(ordered))


def test_a_large_set_is_dealt_without_touching_all_of_it():
    class Lengths(np.ndarray):
        def __getitem__(self, key):
            assert np.size(key) <= 16 * 64
            return super().__getitem__(key)

        def __iter__(self):
            raise AssertionError("all are read")

    widths = (np.arange(1_000_003) % 90).view(Lengths)
    order = example_order(2, widths, 64, 5)
    examples = [example for step in range(15_620, 15_640) for example in order.at(step)]  # across an epoch's end
    assert len(examples) == 20 * 64
    assert set(examples) <= set(range(1_000_003))


@given(n=st.integers(1, 2**40), key=st.integers(0, 2**63 - 1), data=st.data())
def test_many_indices_go_where_each_goes_alone(n, key, data):
    indices = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    actual = permute_array(np.array(indices, dtype=np.int64), n, key).tolist()
    assert actual == [feistel_permute(index, n, key) for index in indices]


# Computed with the first version of each order. If these change, runs no longer resume exactly.
GOLDEN = {
    (1, 5, 4, 7, 0): [1, 1, 4, 4],
    (1, 5, 4, 7, 17): [3, 3, 3, 3],
    (1, 40, 6, 1337, 3): [29, 4, 34, 34, 29, 19],
    (1, 300, 6, 0, 1000): [195, 275, 130, 165, 290, 283],
    (2, 5, 4, 7, 0): [0, 3, 1, 4],
    (2, 5, 12, 7, 17): [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 2],
    (2, 40, 6, 1337, 3): [25, 5, 38, 28, 23, 18],
    (2, 40, 6, 1337, 6): [3, 22, 9, 8, 30, 14],
    (2, 300, 6, 0, 1000): [171, 201, 271, 139, 84, 199],
}
# Steps 0 and 41 of runs whose config.yaml has no data.rules, by the code that wrote them.
KEPT = {
    "pairs": [[15, 11, 17, 47, 21, 28, 25, 29], [37, 27, 35, 13, 47, 9, 18, 33]],
    "chat": [[2, 15, 7, 17, 9, 12, 6, 3], [2, 12, 13, 1, 6, 15, 7, 8]],
    "classes": [[27, 15, 11, 17, 47, 21, 28, 25], [7, 21, 50, 32, 22, 41, 37, 27]],
}


@pytest.mark.parametrize(("rules", "n", "batch_size", "seed", "step"), GOLDEN)
def test_the_order_of_examples_never_changes(rules, n, batch_size, seed, step):
    assert order_of(n, batch_size, seed, rules).at(step) == GOLDEN[rules, n, batch_size, seed, step]


@pytest.mark.parametrize("name", KEPT)
def test_a_run_begun_before_resumes_in_the_order_it_had(name, monkeypatch):
    monkeypatch.chdir(FOLDER)
    config = load_config(Path(name) / "config.yaml")
    corpus = prepare_corpus(config.data, config.tokenizer, note=print)
    batches = open_batches(with_labels(config, corpus), corpus, CPU, print)
    assert isinstance(batches, ExampleBatches)
    assert [batches.indices(step) for step in (0, 41)] == KEPT[name]
