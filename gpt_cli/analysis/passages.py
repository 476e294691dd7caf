"""Find duplicates in bounded memory: by hashes, of which a fixed share is kept when there are too many.

A hash is kept or not by its value. So of what is kept every copy is kept, and the shares measured on it are those of
the whole text up to chance (Broder, 1997, compares documents by the same idea).
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

PASSAGE = 32  # characters of a passage
LONG_LINE = 30  # characters from which on a line says something
_LEAST_CHANGES = 16  # characters of a passage that differ from the one before: a row of dashes is no passage
_LEAST_DISTINCT = 10  # characters of a line, likewise
_PIECES = 1024  # arrays that a sample keeps before it makes them one
_SLICE = 1 << 20  # characters hashed at once, which bounds the memory

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


class HashPrefixSample:
    """Hashes and where they come from: all of them up to `limit`, beyond it those that begin with zeros."""

    def __init__(self, limit: int) -> None:
        self.level = 0
        """One in 2 ** level is kept."""
        self._limit = limit
        self._size = 0
        self._hashes: list[Hashes] = []
        self._places: list[Places] = []

    def add(self, hashes: Hashes, places: Places) -> None:
        """Take (n,) hashes from (n,) places in the text."""
        kept = self._keeps(hashes)
        self._hashes.append(hashes[kept])
        self._places.append(places[kept])
        self._size += len(self._hashes[-1])
        if len(self._hashes) > _PIECES:
            hashes, places = self.arrays()
            self._hashes, self._places = [hashes], [places]
        while self._size > self._limit:
            self.level += 1
            hashes, places = self.arrays()
            kept = self._keeps(hashes)
            self._hashes, self._places = [hashes[kept]], [places[kept]]
            self._size = len(self._hashes[0])

    def arrays(self) -> tuple[Hashes, Places]:
        """(n,) hashes and (n,) places of what is kept, in the order of the text."""
        if not self._hashes:
            return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
        return np.concatenate(self._hashes), np.concatenate(self._places)

    def _keeps(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        if self.level == 0:
            return np.ones(len(hashes), dtype=np.bool_)
        kept: npt.NDArray[np.bool_] = hashes >> np.uint64(64 - self.level) == 0
        return kept


class ShingleHasher:
    """Hashes every passage of 32 characters in stretches of text, one after the other."""

    def __init__(self) -> None:
        self._carried = np.zeros(0, dtype=np.uint32)  # the last 31 code points, with which passages begin
        self._read = 0

    def add(self, codes: npt.NDArray[np.uint32]) -> tuple[Hashes, Places]:
        """The hashes of the passages that end in this stretch, and where they start in the text."""
        start = self._read - len(self._carried)
        self._read += len(codes)
        codes = np.concatenate([self._carried, codes])
        self._carried = codes[-PASSAGE + 1 :]
        if len(codes) < PASSAGE:
            return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
        changes = np.concatenate([[0], np.cumsum(codes[1:] != codes[:-1])])
        telling = np.flatnonzero(changes[PASSAGE - 1 :] - changes[: -PASSAGE + 1] >= _LEAST_CHANGES)
        return hash_windows(codes)[telling], telling + start


def hash_windows(codes: npt.NDArray[np.uint32]) -> Hashes:
    """(n,) code points -> (n - 31,) hashes of the passages of 32 that start at each."""
    hashes = codes.astype(np.uint64)
    width = 1
    while width < PASSAGE:  # of two neighbours of `width` characters one of twice as many
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
    """True if a line, without the white space around it, is long and varied enough to be no coincidence."""
    return len(line) >= LONG_LINE and len(set(line)) >= _LEAST_DISTINCT


def _mix(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ hashes >> np.uint64(31)) * _MIX
    mixed: Hashes = hashes ^ hashes >> np.uint64(29)
    return mixed
