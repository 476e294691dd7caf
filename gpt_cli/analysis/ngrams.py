"""N-gram models of characters with interpolated Kneser-Ney smoothing.

Three discounts (Chen and Goodman, 1998); the lowest order is uniform, so after any context the probabilities of all
characters are positive and sum to 1.

Shapes: N characters, K distinct n-grams of one order, V alphabet. An n-gram is identified by its rank among those of
its length, ordered by (rank of its first n - 1 characters, last character): so keys fit in 64 bits for any alphabet.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Characters = npt.NDArray[np.integer]
Probabilities = npt.NDArray[np.float64]
_Ranks = npt.NDArray[np.int64]
_Counts = npt.NDArray[np.int32]

_ABSENT = -1
_FALLBACK = (0.5, 1.0, 1.5)  # discounts where too few n-grams occur 1 to 4 times to estimate them


@dataclass(frozen=True, eq=False)
class _Order:
    """The n-grams of one length in the training text."""

    keys: _Ranks  # (K,) rank of the context times V, plus the last character; ascending
    counts: _Counts  # (K,) how often each occurs
    continuations: _Counts  # (K,) number of distinct characters before it
    n_contexts: int


@dataclass(frozen=True, eq=False)
class _Matches:
    """Indices of another text's n-grams of one length in the training text's."""

    contexts: _Ranks  # (N - n + 1,) or absent
    ranks: _Ranks  # (N - n + 1,) or absent


@dataclass(frozen=True, eq=False)
class KneserNey:
    """N-gram models of every order up to one, learned from the same text."""

    vocab_size: int
    _orders: tuple[_Order, ...]

    @classmethod
    def learn(cls, text: Characters, vocab_size: int, order: int) -> "KneserNey":
        """Count the n-grams of `text`, (N,) integers below `vocab_size`, up to length `order`."""
        tables: list[tuple[_Ranks, _Counts]] = []
        continuations: list[_Counts] = []
        contexts = np.zeros(len(text) + 1, dtype=np.int64)  # rank of the (n - 1)-gram at each position
        for n in range(1, min(order, len(text)) + 1):
            keys, ranks, counts = np.unique(
                contexts[: len(text) - n + 1] * vocab_size + text[n - 1 :], return_inverse=True, return_counts=True
            )
            if n > 1:  # each distinct n-gram is a continuation of its last n - 1 characters
                position = np.zeros(len(keys), dtype=np.int64)
                position[ranks] = np.arange(len(ranks))
                continuations.append(np.bincount(contexts[position + 1], minlength=len(tables[-1][0])).astype(np.int32))
            tables.append((keys, counts.astype(np.int32)))
            contexts = ranks
        continuations.append(np.zeros(0, dtype=np.int32))  # of the highest order: never used
        n_contexts = [1, *(len(keys) for keys, _ in tables)]
        orders = zip(tables, continuations, n_contexts, strict=False)
        return cls(vocab_size, tuple(_Order(keys, counts, after, n) for (keys, counts), after, n in orders))

    def probabilities(self, text: Characters, orders: Sequence[int]) -> dict[int, Probabilities]:
        """For each order, (N,) the probability of each character of `text` given those before it.

        The context of order n is n - 1 characters, or as many as there are.
        """
        matches = self._match(text)
        return {order: self._interpolate(matches, len(text), order) for order in orders}

    def _match(self, text: Characters) -> list[_Matches]:
        matches: list[_Matches] = []
        contexts = np.zeros(len(text) + 1, dtype=np.int64)
        for n, order in enumerate(self._orders[: len(text)], start=1):
            prefixes = contexts[: len(text) - n + 1]
            keys = np.where(prefixes == _ABSENT, _ABSENT, prefixes * self.vocab_size + text[n - 1 :])
            ranks = np.minimum(np.searchsorted(order.keys, keys), len(order.keys) - 1)
            ranks = np.where(order.keys[ranks] == keys, ranks, _ABSENT)
            matches.append(_Matches(prefixes, ranks))
            contexts = ranks
        return matches

    def _interpolate(self, matches: list[_Matches], length: int, order: int) -> Probabilities:
        """Interpolate: each order discounts its counts and gives the discounted mass to the order below.

        The highest order counts occurrences, lower ones the distinct characters before: `Francisco` is frequent, but
        only after `San `, so it is unlikely in an unknown context.
        """
        result = np.full(length, 1 / self.vocab_size)
        for n, (table, match) in enumerate(zip(self._orders[:order], matches, strict=False), start=1):
            counts = table.counts if n == min(order, len(self._orders)) else table.continuations
            discounts = np.array([0.0, *_discounts(counts)])[np.minimum(counts, 3)]  # (K,)
            contexts = table.keys // self.vocab_size
            totals = np.bincount(contexts, counts, table.n_contexts)
            discounted = np.bincount(contexts, discounts, table.n_contexts)
            is_known = match.contexts != _ABSENT
            is_known[is_known] = totals[match.contexts[is_known]] > 0
            ranks = match.contexts[is_known]
            discounted_counts = np.where(match.ranks == _ABSENT, 0, (counts - discounts)[match.ranks])[is_known]
            lower = result[n - 1 :]  # a view
            lower[is_known] = (discounted_counts + discounted[ranks] * lower[is_known]) / totals[ranks]
        return result


def _discounts(counts: _Counts) -> tuple[float, float, float]:
    """The discounts of n-grams counted once, twice, and more often (Chen and Goodman, 1998, equation 26)."""
    once, twice, thrice, four = (int(np.count_nonzero(counts == n)) for n in (1, 2, 3, 4))
    if not (once and twice and thrice and four):
        return _FALLBACK
    y = once / (once + 2 * twice)
    discounts = (1 - 2 * y * twice / once, 2 - 3 * y * thrice / twice, 3 - 4 * y * four / thrice)
    return discounts if all(0 < d <= n for n, d in enumerate(discounts, start=1)) else _FALLBACK
