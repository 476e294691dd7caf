"""Find duplicates by their hashes, in bounded memory: of too many hashes a sample is kept.

The sample is chosen by the value of the hash, so it has all copies or none, and the share of duplicates in it is an
unbiased estimate (the idea of Broder, 1997).
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]

PASSAGE = 32  # characters of a passage
LONG_LINE = 30  # characters; shorter lines are not compared
_MIN_CHANGES = 16  # characters of a passage that differ from the one before: excludes rows of dashes
_MIN_DISTINCT = 10  # characters of a line, likewise
_MAX_ARRAYS = 1024  # arrays of a sample before they are concatenated
_SLICE = 1 << 20  # characters hashed at once, to bound the memory

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


class HashPrefixSample:
    """Hashes with their positions in the text: up to `limit` all, beyond it those that begin with `level` zero bits."""

    def __init__(self, limit: int) -> None:
        self.level = 0
        """One in 2 ** level is kept."""
        self._limit = limit
        self._size = 0
        self._hashes: list[Hashes] = []
        self._positions: list[Positions] = []

    def add(self, hashes: Hashes, positions: Positions) -> None:
        """Add (n,) hashes and their (n,) positions in the text."""
        sampled = self._is_sampled(hashes)
        self._hashes.append(hashes[sampled])
        self._positions.append(positions[sampled])
        self._size += len(self._hashes[-1])
        if len(self._hashes) > _MAX_ARRAYS:
            hashes, positions = self.arrays()
            self._hashes, self._positions = [hashes], [positions]
        while self._size > self._limit:
            self.level += 1
            hashes, positions = self.arrays()
            sampled = self._is_sampled(hashes)
            self._hashes, self._positions = [hashes[sampled]], [positions[sampled]]
            self._size = len(self._hashes[0])

    def arrays(self) -> tuple[Hashes, Positions]:
        """(n,) hashes of the sample and their (n,) positions, in the order of the text."""
        if not self._hashes:
            return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
        return np.concatenate(self._hashes), np.concatenate(self._positions)

    def _is_sampled(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        if self.level == 0:
            return np.ones(len(hashes), dtype=np.bool_)
        sampled: npt.NDArray[np.bool_] = hashes >> np.uint64(64 - self.level) == 0
        return sampled


class ShingleHasher:
    """Hashes all passages of 32 characters of a text, which comes in consecutive pieces."""

    def __init__(self) -> None:
        self._tail = np.zeros(0, dtype=np.uint32)  # the last 31 code points: passages continue in the next piece
        self._read = 0

    def add(self, codes: npt.NDArray[np.uint32]) -> tuple[Hashes, Positions]:
        """(hashes of the passages that end in this piece, their start positions in the text)."""
        start = self._read - len(self._tail)
        self._read += len(codes)
        codes = np.concatenate([self._tail, codes])
        self._tail = codes[-PASSAGE + 1 :]
        if len(codes) < PASSAGE:
            return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
        changes = np.concatenate([[0], np.cumsum(codes[1:] != codes[:-1])])
        informative = np.flatnonzero(changes[PASSAGE - 1 :] - changes[: -PASSAGE + 1] >= _MIN_CHANGES)
        return hash_windows(codes)[informative], informative + start


def hash_windows(codes: npt.NDArray[np.uint32]) -> Hashes:
    """(n,) code points -> (n - 31,) hashes of the passages of 32 that start at each."""
    hashes = codes.astype(np.uint64)
    width = 1
    while width < PASSAGE:  # combine neighbours to twice the width
        hashes = _mix(hashes[:-width] * _ODD + hashes[width:])
        width *= 2
    return hashes


def hash_texts(texts: Iterable[str]) -> Hashes:
    """(n,) one hash per text."""
    return np.frombuffer(b"".join(map(_digest, texts)), dtype="<u8").astype(np.uint64)


def _digest(text: str) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for start in range(0, len(text), _SLICE):
        digest.update(text[start : start + _SLICE].encode())
    return digest.digest()


def is_informative(line: str) -> bool:
    """True if a stripped line is long and varied enough that a copy is no coincidence."""
    return len(line) >= LONG_LINE and len(set(line)) >= _MIN_DISTINCT


def _mix(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ hashes >> np.uint64(31)) * _MIX
    mixed: Hashes = hashes ^ hashes >> np.uint64(29)
    return mixed
