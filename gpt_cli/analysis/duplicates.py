"""Find duplicates by their hashes, in bounded memory: of too many hashes a sample is kept.

The sample is chosen by the value of the hash, so it has all copies or none, and the share of duplicates in it is an
unbiased estimate (the idea of Broder, 1997).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from gpt_cli.analysis.text_sample import BLOCK

Hashes = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]

PASSAGE = 32  # characters of a passage
LONG_LINE = 30  # characters; shorter lines are not compared
_MIN_CHANGES = 16  # characters of a passage that differ from the one before: excludes rows of dashes
_MIN_DISTINCT = 10  # characters of a line, likewise
_MAX_ARRAYS = 1024  # arrays of a sample before they are concatenated
_MAX_LISTED = 5
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


@dataclass(frozen=True)
class DuplicateCount:
    """Number of duplicates among the items compared."""

    compared: int
    """All items, or those whose hash is in the sample."""
    copies: int
    """Items that equal an earlier one."""

    @property
    def share(self) -> float:
        """Share of copies; 0 if nothing was compared."""
        return self.copies / self.compared if self.compared else 0.0


@dataclass(frozen=True)
class RepeatedLine:
    text: str
    count: int


@dataclass(frozen=True)
class CopiedPassage:
    """A passage of the validation text that is also in the training text."""

    text: str
    characters: int


class HashPrefixSample:
    """Hashes with their positions in the text: up to `limit` all, beyond it those that begin with `level` zero bits."""

    def __init__(self, limit: int) -> None:
        self.level = 0
        """One in 2 ** level is kept."""
        self._limit = limit
        self._size = 0
        self._arrays: list[tuple[Hashes, Positions]] = [(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))]

    def add(self, hashes: Hashes, positions: Positions) -> None:
        """Add (n,) hashes and their (n,) positions in the text."""
        if self.level:
            sampled = hashes >> np.uint64(64 - self.level) == 0
            hashes, positions = hashes[sampled], positions[sampled]
        self._arrays.append((hashes, positions))
        self._size += len(hashes)
        if len(self._arrays) > _MAX_ARRAYS:
            self._arrays = [self.arrays()]
        if self._size > self._limit:
            whole = self.arrays()
            self.level, self._size, self._arrays = self.level + 1, 0, []
            self.add(*whole)

    def arrays(self) -> tuple[Hashes, Positions]:
        """Return the (n,) hashes of the sample and their (n,) positions, in the order of the text."""
        hashes, positions = zip(*self._arrays, strict=True)
        return np.concatenate(hashes), np.concatenate(positions)


class PassageHasher:
    """Hash all passages of 32 characters of a text, which comes in consecutive pieces."""

    def __init__(self) -> None:
        self._tail = np.zeros(0, dtype=np.uint32)  # the last 31 code points: passages continue in the next piece
        self._read = 0

    def add(self, codes: npt.NDArray[np.uint32]) -> tuple[Hashes, Positions]:
        """Return the hashes of the varied passages that end in this piece, and their start positions in the text."""
        start = self._read - len(self._tail)
        self._read += len(codes)
        codes = np.concatenate([self._tail, codes])
        self._tail = codes[-PASSAGE + 1 :]
        changes = np.concatenate([[0], np.cumsum(codes[1:] != codes[:-1])])
        informative = np.flatnonzero(changes[PASSAGE - 1 :] - changes[: -PASSAGE + 1] >= _MIN_CHANGES)
        return hash_windows(codes)[informative], informative + start


class LineHasher:
    """Hash the long lines of a text, which comes in consecutive pieces."""

    def __init__(self) -> None:
        self._start = 0  # of the line that has not ended yet
        self._unfinished = ""

    def add(self, text: str, *, ends_line: bool = False) -> tuple[Hashes, Positions]:
        """Return the hashes of the long lines that end in this piece, and their start positions in the text.

        `ends_line`: the last line ends with the piece.
        """
        text = self._unfinished + text
        size = len(text) if ends_line else text.rfind("\n") + 1
        if not size and len(text) > BLOCK:  # hardly a line: count it as one
            size = len(text)
        lines = list(_long_lines(text[:size], self._start))
        self._start, self._unfinished = self._start + size, text[size:]
        return hash_texts(line for _, line in lines), np.array([start for start, _ in lines], dtype=np.int64)


def _long_lines(text: str, position: int = 0) -> Iterator[tuple[int, str]]:
    """Yield (start, stripped line) for the lines so long and varied that a copy is no coincidence."""
    for line in text.split("\n"):
        stripped = line.strip()
        if len(stripped) >= LONG_LINE and len(set(stripped)) >= _MIN_DISTINCT:
            yield position, stripped
        position += len(line) + 1


def hash_windows(codes: npt.NDArray[np.uint32]) -> Hashes:
    """(n,) code points -> (n - 31,) hashes of the passages of 32 that start at each."""
    hashes = codes.astype(np.uint64)
    width = 1
    while width < PASSAGE:  # combine neighbours to twice the width
        hashes = hashes[:-width] * _ODD + hashes[width:]
        hashes = (hashes ^ hashes >> np.uint64(31)) * _MIX
        hashes = hashes ^ hashes >> np.uint64(29)
        width *= 2
    return hashes


def hash_texts(texts: Iterable[str]) -> Hashes:
    """Return (n,) one hash per text."""
    digests = (blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def count_copies(sample: HashPrefixSample) -> DuplicateCount:
    """Count the items that equal an earlier one."""
    hashes, _ = sample.arrays()
    return DuplicateCount(len(hashes), len(hashes) - len(np.unique(hashes)))


def find_leaked(sample: HashPrefixSample, cut: int, length: int) -> tuple[DuplicateCount, Positions]:
    """Find the items from position `cut` on that also occur before it: (their count, their (n,) positions).

    An item occurs before `cut` if its first `length` characters do.
    """
    hashes, positions = sample.arrays()
    training, validation = np.sort(hashes[positions + length <= cut]), hashes[positions >= cut]
    leaked = np.zeros(len(validation), dtype=np.bool_)
    if len(training):
        leaked = training[np.minimum(np.searchsorted(training, validation), len(training) - 1)] == validation
    return DuplicateCount(len(leaked), int(leaked.sum())), positions[positions >= cut][leaked]


def most_repeated(sample: HashPrefixSample, texts: Iterable[str]) -> tuple[RepeatedLine, ...]:
    """Return the long lines of `texts` that occur most often in a sample of lines."""
    distinct, counts = np.unique(sample.arrays()[0], return_counts=True)
    frequent = np.argsort(-counts, kind="stable")[: 4 * _MAX_LISTED]
    count_of = {int(distinct[i]): int(counts[i]) for i in frequent if counts[i] > 1}
    lines_of: dict[int, str] = {}
    for text in texts:
        lines = [line for _, line in _long_lines(text)]
        lines_of |= {key: line for key, line in zip(hash_texts(lines).tolist(), lines, strict=True) if key in count_of}
    repeated = [RepeatedLine(text, count_of[key]) for key, text in lines_of.items()]
    return tuple(sorted(repeated, key=lambda line: (-line.count, line.text))[:_MAX_LISTED])


def longest_passages(positions: Positions, val: str) -> tuple[CopiedPassage, ...]:
    """Return the longest unions of overlapping passages, which start at (n,) `positions` of the validation text."""
    if not len(positions):
        return ()
    breaks = np.flatnonzero(np.diff(positions) > 1) + 1
    starts = positions[np.concatenate([[0], breaks])]
    ends = positions[np.concatenate([breaks, [len(positions)]]) - 1] + PASSAGE
    longest = np.argsort(starts - ends, kind="stable")[:_MAX_LISTED]
    return tuple(CopiedPassage(val[starts[i] : ends[i]], int(ends[i] - starts[i])) for i in longest)
