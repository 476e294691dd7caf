"""Measure verbatim copying: the substrings of a sample that are in the training text.

Copied 8- and 20-grams and the longest copied span, in characters, all exact. A hash of 8 characters selects the spans
of the training text that may share a substring with a sample; only these are run through the sample's suffix automaton.
A hash collision costs time and does not change the result.

Shapes: N characters of the training text, n of a gram.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt_cli.evaluation.suffix_automaton import SuffixAutomaton

GRAMS = (8, 20)
_FILTERS = (8, 4, 1)  # characters that are hashed; shorter ones if nothing of 8 was copied
_BLOCK = 1 << 20  # characters that are hashed at once
_MAX_SEEN = 1 << 16  # short spans that are remembered, so as not to read them again
_MAX_SEEN_LENGTH = 64  # characters of a short span
_BASE, _MIX = np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)
_TOP = np.uint64(48)  # the hash's highest 16 bits index a table

NgramHashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Novelty:
    """Copied spans of a text. Lengths are in characters."""

    span: str
    """The longest substring that is in the training text; of equals the first."""
    copied: dict[int, float | None]
    """n -> the share of its n-grams that are in the training text; None if it has fewer than n characters."""

    def to_json(self) -> dict[str, Any]:
        shares = {f"copied_{n}": None if share is None else round(share, 6) for n, share in self.copied.items()}
        return {"longest": len(self.span), "span": self.span, **shares}


def measure_novelty(samples: Sequence[str], training: str) -> list[Novelty]:
    """Compare each sample with the training text, in one pass over it for all of them."""
    results: dict[int, Novelty] = {}
    for n in _FILTERS:
        pending = [i for i, sample in enumerate(samples) if i not in results and (len(sample) >= n or n == 1)]
        compared_samples = [_Sample(samples[i], n) for i in pending]
        if any(samples[i] for i in pending):
            _read_training(compared_samples, training, n)
        for i, sample in zip(pending, compared_samples, strict=True):
            matches = sample.automaton.matches()
            if max(matches, default=0) >= n or n == 1:
                results[i] = _novelty_of(samples[i], matches)
    return [results[i] for i in range(len(samples))]


def _novelty_of(sample: str, matches: list[int]) -> Novelty:
    longest = max(matches, default=0)
    end = matches.index(longest) + 1 if matches else 0
    copied: dict[int, float | None] = {}
    for n in GRAMS:
        grams = len(sample) - n + 1
        copied[n] = sum(match >= n for match in matches) / grams if grams > 0 else None
    return Novelty(sample[end - longest : end], copied)


@dataclass
class _Sample:
    """A sample while it is compared with the training text."""

    text: str
    n: int
    automaton: SuffixAutomaton = field(init=False)
    hashes: NgramHashes = field(init=False)
    """Hashes of its n-grams, sorted."""
    table: npt.NDArray[np.bool_] = field(init=False)
    """(65,536,) True for each value of the highest 16 bits that a hash has."""

    def __post_init__(self) -> None:
        self.automaton = SuffixAutomaton(self.text)
        self.hashes = np.unique(_hash(_codes(self.text), self.n))
        self.table = np.zeros(1 << 16, dtype=np.bool_)
        self.table[self.hashes >> _TOP] = True
        self._pending: tuple[int, int] | None = (
            None  # first and last n-gram of a span that may continue in the next block
        )
        self._seen: set[str] = set()

    def add(self, training: str, start: int, hashes: NgramHashes) -> None:
        """Read the spans with matching n-grams; `hashes` are those of the training text from character `start` on."""
        hits = np.flatnonzero(self.table[hashes >> _TOP])
        if len(hits):
            nearest = np.searchsorted(self.hashes, hashes[hits]).clip(max=len(self.hashes) - 1)
            hits = hits[self.hashes[nearest] == hashes[hits]]
        if not len(hits):
            return
        gaps = np.flatnonzero(np.diff(hits) > 1)
        firsts = (start + hits[np.concatenate([[0], gaps + 1])]).tolist()
        lasts = (start + hits[np.concatenate([gaps, [len(hits) - 1]])]).tolist()
        for first, last in zip(firsts, lasts, strict=True):
            if self._pending is not None and first == self._pending[1] + 1:
                self._pending = self._pending[0], last
            else:
                self.finish(training)
                self._pending = first, last

    def finish(self, training: str) -> None:
        """Read the pending span, which has no further n-gram."""
        if self._pending is None:
            return
        text = training[self._pending[0] : self._pending[1] + self.n]
        self._pending = None
        if len(text) <= _MAX_SEEN_LENGTH:
            if text in self._seen:
                return
            if len(self._seen) < _MAX_SEEN:
                self._seen.add(text)
        self.automaton.read(text)


def _read_training(samples: Sequence[_Sample], training: str, n: int) -> None:
    """Mark in each sample the substrings of at least `n` that are in the training text."""
    for start, hashes in _hashes_of(training, n):
        for sample in samples:
            if len(sample.hashes):
                sample.add(training, start, hashes)
    for sample in samples:
        sample.finish(training)


def _hashes_of(text: str, n: int) -> Iterator[tuple[int, NgramHashes]]:
    """Yield (start of the block, hashes of its n-grams) for each block of a text."""
    for start in range(0, len(text) - n + 1, _BLOCK):
        yield start, _hash(_codes(text[start : start + _BLOCK + n - 1]), n)


def _hash(codes: npt.NDArray[np.uint32], n: int) -> NgramHashes:
    """(N,) code points -> (N - n + 1,): a polynomial of each n-gram modulo 2^64, mixed into its highest bits."""
    if len(codes) < n:
        return np.empty(0, dtype=np.uint64)
    size = len(codes) - n + 1
    codes64 = codes.astype(np.uint64)
    hashes: NgramHashes = np.zeros(size, dtype=np.uint64)
    for i in range(n):
        hashes *= _BASE
        hashes += codes64[i : i + size]
    return hashes * _MIX


def _codes(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
