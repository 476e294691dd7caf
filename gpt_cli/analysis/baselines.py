"""Baselines: n-gram models and compressors, fitted to the training text, measured on the validation text.

The n-gram models are characters with interpolated Kneser-Ney smoothing and three discounts (Chen and Goodman, 1998).
The lowest order is uniform, so after any context the probabilities of all characters are positive and sum to 1.

Shapes: N characters, K distinct n-grams of one order, V alphabet. An n-gram is identified by its rank among those of
its length, ordered by (rank of its first n - 1 characters, last character): so keys fit in 64 bits for any alphabet.
"""

import lzma
import math
import zlib
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.tokenizer.base import encode_text

Characters = npt.NDArray[np.integer]
Probabilities = npt.NDArray[np.float64]
_Ranks = npt.NDArray[np.int64]
_Counts = npt.NDArray[np.int32]

ORDERS = {1: "unigram", 2: "bigram", 3: "3-gram", 5: "5-gram", 8: "8-gram"}
_COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "zlib": lambda data: zlib.compress(data, 9),
    "xz": lambda data: lzma.compress(data, preset=6),
}
_ABSENT = -1
_FALLBACK = (0.5, 1.0, 1.5)  # discounts where too few n-grams occur 1 to 4 times to estimate them


@dataclass(frozen=True)
class Baseline:
    name: str
    bits_per_character: float
    bits_per_byte: float
    nats_per_character: float
    """The equivalent loss of a character model."""


def measure_baselines(train: str, val: str, alphabet: npt.NDArray[np.int64]) -> list[Baseline]:
    """Measure n-gram models and compressors. Both texts consist of the (V,) code points in `alphabet`; none is empty.

    The bits of a compressor are those that the validation text adds when it is compressed after the training text.
    """
    positions = [np.searchsorted(alphabet, code_points(text)) for text in (train, val)]
    ngrams = KneserNey(positions[0], len(alphabet), max(ORDERS)).probabilities(positions[1], ORDERS)
    bits = {"uniform": len(val) * math.log2(len(alphabet))}
    bits |= {ORDERS[order]: max(0.0, -float(np.log2(values).sum())) for order, values in ngrams.items()}
    data, added = encode_text(train), encode_text(val)
    with ThreadPoolExecutor(2) as threads:  # compressors release the GIL
        for name, compress in _COMPRESSORS.items():
            before, after = map(len, threads.map(compress, (data, data + added)))
            bits[name] = 8.0 * max(0, after - before)
    return [Baseline(name, b / len(val), b / len(added), b / len(val) * math.log(2)) for name, b in bits.items()]


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """Return the (N,) code points of a text."""
    return np.frombuffer(encode_text(text, "utf-32-le"), dtype="<u4")


@dataclass(eq=False)
class _Order:
    """The n-grams of one length in the training text."""

    keys: _Ranks  # (K,) rank of the context times V, plus the last character; ascending
    n_contexts: int
    counts: _Counts  # (K,) how often each occurs
    continuations: _Counts | None = None  # (K,) number of distinct characters before it; None for the longest


class KneserNey:
    """N-gram models of every order up to one, learned from the same text."""

    def __init__(self, text: Characters, vocab_size: int, order: int) -> None:
        """Count the n-grams of `text`, (N,) integers below `vocab_size`, up to length `order`."""
        self.vocab_size = vocab_size
        self._orders: list[_Order] = []
        contexts = np.zeros(len(text) + 1, dtype=np.int64)  # rank of the (n - 1)-gram at each position
        n_contexts = 1
        for n in range(1, min(order, len(text)) + 1):
            keys, ranks, counts = np.unique(
                contexts[: len(text) - n + 1] * vocab_size + text[n - 1 :], return_inverse=True, return_counts=True
            )
            if n > 1:  # each distinct n-gram is a continuation of its last n - 1 characters
                position = np.zeros(len(keys), dtype=np.int64)
                position[ranks] = np.arange(len(ranks))
                continuations = np.bincount(contexts[position + 1], minlength=n_contexts)
                self._orders[-1].continuations = continuations.astype(np.int32)
            self._orders.append(_Order(keys, n_contexts, counts.astype(np.int32)))
            contexts, n_contexts = ranks, len(keys)

    def probabilities(self, text: Characters, orders: Collection[int]) -> dict[int, Probabilities]:
        """Return, for each order, (N,) the probability of each character of `text` given those before it.

        The context of order n is n - 1 characters, or as many as there are. The highest order counts occurrences, lower
        ones the distinct characters before: `Francisco` is frequent, but only after `San `, so it is unlikely in an
        unknown context.
        """
        found: dict[int, Probabilities] = {}
        lower = np.full(len(text), 1 / self.vocab_size)
        ranks = np.zeros(len(text) + 1, dtype=np.int64)  # of the (n - 1)-grams of `text`, or absent
        for n, table in enumerate(self._orders[: len(text)], start=1):
            contexts = ranks[: len(text) - n + 1]
            keys = np.where(contexts == _ABSENT, _ABSENT, contexts * self.vocab_size + text[n - 1 :])
            ranks = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
            ranks = np.where(table.keys[ranks] == keys, ranks, _ABSENT)
            for order in orders:
                if n == min(order, len(self._orders)):
                    found[order] = self._interpolate(table, table.counts, contexts, ranks, lower)
            if table.continuations is not None:
                lower = self._interpolate(table, table.continuations, contexts, ranks, lower)
        return {order: found.get(order, lower) for order in orders}

    def _interpolate(
        self, table: _Order, counts: _Counts, contexts: _Ranks, ranks: _Ranks, lower: Probabilities
    ) -> Probabilities:
        """Discount the counts of an order, and give the discounted mass to the order below."""
        discounts = np.array([0.0, *_discounts(counts)])[np.minimum(counts, 3)]  # (K,)
        totals = np.bincount(table.keys // self.vocab_size, counts, table.n_contexts)
        discounted = np.bincount(table.keys // self.vocab_size, discounts, table.n_contexts)
        is_known = contexts != _ABSENT
        is_known[is_known] = totals[contexts[is_known]] > 0
        known = contexts[is_known]
        own = np.where(ranks == _ABSENT, 0, (counts - discounts)[ranks])[is_known]
        result = lower.copy()
        backoff = result[len(result) - len(contexts) :]  # a view
        backoff[is_known] = (own + discounted[known] * backoff[is_known]) / totals[known]
        return result


def _discounts(counts: _Counts) -> tuple[float, float, float]:
    """Return the discounts of n-grams counted once, twice, and more often (Chen and Goodman, 1998, equation 26)."""
    once, twice, thrice, four = (int(np.count_nonzero(counts == n)) for n in (1, 2, 3, 4))
    if not (once and twice and thrice and four):
        return _FALLBACK
    y = once / (once + 2 * twice)
    discounts = (1 - 2 * y * twice / once, 2 - 3 * y * thrice / twice, 3 - 4 * y * four / thrice)
    return discounts if all(0 < d <= n for n, d in enumerate(discounts, start=1)) else _FALLBACK
