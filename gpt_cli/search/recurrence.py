"""The share of a text that repeats what stood some tokens before, which is what a longer context is worth.

A transformer learns to look for the last occurrence of what it has just read, and to predict what followed it
(induction heads; Olsson et al., 2022). Code repeats names and lines over thousands of characters, prose seldom does.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.tokens import MappedTokens, Tokens, sample_evenly

MATCHED_CHARACTERS, MATCHED_SUBWORDS = 20, 6
"""Tokens in a row that prose hardly ever repeats: characters or bytes, or tokens of a BPE, of three or four of them."""
_FARTHEST = 4096
_SAMPLED, _PARTS = 1 << 20, 4  # tokens of a long text that are looked at, in so many parts
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio (Knuth, 1998, section 6.4)


@dataclass(frozen=True, eq=False)
class Recurrence:
    """The (d,) share of a text's tokens that end a run of tokens whose last occurrence was at most d tokens before."""

    shares: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    def within(self, context_length: int) -> float:
        """The share that recurs within this many tokens."""
        return float(self.shares[min(context_length, len(self.shares) - 1)])


NOTHING_RECURS = Recurrence()


def measure_recurrence(ids: Tokens | MappedTokens, *, is_subword: bool = False) -> Recurrence:
    """Measure (N,) `ids`, each of a BPE if `is_subword`, else a character or byte. A long text is judged by parts."""
    matched = MATCHED_SUBWORDS if is_subword else MATCHED_CHARACTERS
    sample = sample_evenly(ids, _SAMPLED, _PARTS)
    distances = _distances(sample, matched)
    counts = np.bincount(distances[distances <= _FARTHEST], minlength=_FARTHEST + 1)
    return Recurrence(np.cumsum(counts) / max(1, len(sample)))


def _distances(ids: Tokens, matched: int) -> npt.NDArray[np.int64]:
    """Tokens back to the last occurrence of each run of `matched` tokens, of those that recur."""
    windows = max(0, len(ids) - matched + 1)
    hashes = np.zeros(windows, dtype=np.uint64)
    for offset in range(matched):  # unsigned integers wrap around
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _MULTIPLIER + ids[offset : offset + windows] + np.uint64(1)
    order = np.argsort(hashes, kind="stable")
    recurs = hashes[order[1:]] == hashes[order[:-1]]
    distances: npt.NDArray[np.int64] = (order[1:] - order[:-1])[recurs]
    return distances
