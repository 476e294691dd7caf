"""Is a model writing or reciting? What of a sample stands, word for word, in the training text.

Copied 8- and 20-grams and the longest copied span, all in characters, and exact. A hash of 8 characters tells which
stretches of the training text can have anything in common with a sample; they are few, and the sample's suffix
automaton reads them. The hash only leaves out: a stretch that it lets through wrongly costs time and changes nothing.

Shapes: N characters of the training text, n of a gram.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt_cli.evaluation.suffix_automaton import SuffixAutomaton

GRAMS = (8, 20)
_FILTERS = (8, 4, 1)  # characters that are hashed; the shorter ones where nothing of 8 was copied
_BLOCK = 1 << 20  # characters that are hashed at once
_REMEMBERED = 1 << 16  # stretches of at most _SHORT characters that are not read a second time
_SHORT = 64
_BASE, _MIX = np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)
_TOP = np.uint64(48)  # the hash's highest 16 bits index a table

NgramHashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Novelty:
    """Copied spans of a text. Lengths are in characters."""

    span: str
    """The longest substring that the training text has, too; of equals the first."""
    copied: dict[int, float | None]
    """n -> the share of its n-grams that the training text has, too. None: it has fewer than n characters."""

    def to_json(self) -> dict[str, Any]:
        shares = {f"copied_{n}": None if share is None else round(share, 6) for n, share in self.copied.items()}
        return {"longest": len(self.span), "span": self.span, **shares}


def measure_novelty(samples: Sequence[str], training: str) -> list[Novelty]:
    """Compare each sample with the training text, in one pass over it for all of them."""
    found: dict[int, Novelty] = {}
    for n in _FILTERS:
        pending = [i for i, sample in enumerate(samples) if i not in found and (len(sample) >= n or n == 1)]
        compared = [_Sample(samples[i], n) for i in pending]
        if any(samples[i] for i in pending):
            _read(compared, training, n)
        for i, one in zip(pending, compared, strict=True):
            matches = one.automaton.matches()
            if max(matches, default=0) >= n or n == 1:
                found[i] = _conclude(samples[i], matches)
    return [found[i] for i in range(len(samples))]


def _conclude(sample: str, matches: list[int]) -> Novelty:
    longest = max(matches, default=0)
    end = matches.index(longest) + 1 if matches else 0
    copied: dict[int, float | None] = {}
    for n in GRAMS:
        grams = len(sample) - n + 1
        copied[n] = sum(match >= n for match in matches) / grams if grams > 0 else None
    return Novelty(sample[end - longest : end], copied)


@dataclass
class _Sample:
    """A sample that is being compared."""

    text: str
    n: int
    automaton: SuffixAutomaton = field(init=False)
    hashes: NgramHashes = field(init=False)
    """Hashes of its n-grams, sorted."""
    table: npt.NDArray[np.bool_] = field(init=False)
    """(65,536,) whether any of them has these highest bits."""

    def __post_init__(self) -> None:
        self.automaton = SuffixAutomaton(self.text)
        self.hashes = np.unique(_hash(_codes(self.text), self.n))
        self.table = np.zeros(1 << 16, dtype=np.bool_)
        self.table[self.hashes >> _TOP] = True
        self._open: tuple[int, int] | None = None  # a stretch that may go on in the next block
        self._seen: set[str] = set()

    def add(self, training: str, start: int, hashes: NgramHashes) -> None:
        """The n-grams of the training text from character `start` on have these hashes."""
        places = np.flatnonzero(self.table[hashes >> _TOP])
        if len(places):
            nearest = np.searchsorted(self.hashes, hashes[places]).clip(max=len(self.hashes) - 1)
            places = places[self.hashes[nearest] == hashes[places]]
        if not len(places):
            return
        borders = np.flatnonzero(np.diff(places) > 1)
        firsts = (start + places[np.concatenate([[0], borders + 1])]).tolist()
        lasts = (start + places[np.concatenate([borders, [len(places) - 1]])]).tolist()
        for first, last in zip(firsts, lasts, strict=True):
            if self._open is not None and first == self._open[1] + 1:
                self._open = self._open[0], last
            else:
                self.finish(training)
                self._open = first, last

    def finish(self, training: str) -> None:
        """No further n-gram belongs to the stretch before."""
        if self._open is None:
            return
        text = training[self._open[0] : self._open[1] + self.n]
        self._open = None
        if len(text) <= _SHORT:
            if text in self._seen:
                return
            if len(self._seen) < _REMEMBERED:
                self._seen.add(text)
        self.automaton.read(text)


def _read(samples: Sequence[_Sample], training: str, n: int) -> None:
    """Mark in each sample the substrings of at least `n` that are in the training text."""
    for start, hashes in _hashes_of(training, n):
        for sample in samples:
            if len(sample.hashes):
                sample.add(training, start, hashes)
    for sample in samples:
        sample.finish(training)


def _hashes_of(text: str, n: int) -> Iterator[tuple[int, NgramHashes]]:
    """The hashes of all n-grams of a text, block by block, with the place of the first of each block."""
    for start in range(0, len(text) - n + 1, _BLOCK):
        yield start, _hash(_codes(text[start : start + _BLOCK + n - 1]), n)


def _hash(codes: npt.NDArray[np.uint32], n: int) -> NgramHashes:
    """(N,) code points -> (N - n + 1,): a polynomial of each n-gram modulo 2^64, mixed into its highest bits."""
    if len(codes) < n:
        return np.empty(0, dtype=np.uint64)
    size = len(codes) - n + 1
    wide = codes.astype(np.uint64)
    hashes: NgramHashes = np.zeros(size, dtype=np.uint64)
    for i in range(n):
        hashes *= _BASE
        hashes += wide[i : i + size]
    return hashes * _MIX


def _codes(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
