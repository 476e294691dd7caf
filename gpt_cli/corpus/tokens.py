"""Token ids in memory and mapped from files, and parts of them."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt_cli.files import DamagedError

Tokens = npt.NDArray[np.uint16 | np.uint32]


class MappedTokens:
    """(n,) ids of one or several files, end to end, of which only the pages that were read lately are in memory.

    Reads return copies.
    """

    def __init__(self, pieces: Sequence[Tokens], vocab_size: int | None = None) -> None:
        """`pieces` are the ids of the files, mapped; there is at least one.

        `vocab_size`: that of ids which were not verified; a read raises DamagedError for one outside of it.
        """
        self._vocab_size = vocab_size
        self._pieces = list(pieces)
        self._starts = [0, *accumulate(len(piece) for piece in pieces)]
        self.dtype: np.dtype[Any] = pieces[0].dtype

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of all ids."""
        return len(self) * self.dtype.itemsize

    def __getitem__(self, key: slice) -> Tokens:
        """The ids of a slice. Raises ValueError for a step other than 1."""
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise ValueError("a slice of mapped ids has no step")
        return self._read(start, max(start, stop))

    def windows(self, starts: Sequence[int], length: int) -> Tokens:
        """(W, length): the ids from each of the W `starts` on."""
        return np.stack([self._read(start, start + length) for start in starts])

    def _read(self, start: int, stop: int) -> Tokens:
        parts: list[Tokens] = []
        position = start
        while position < stop:
            i = bisect_right(self._starts, position) - 1
            parts.append(self._pieces[i][position - self._starts[i] : stop - self._starts[i]])
            position += len(parts[-1])
        ids = np.concatenate(parts) if parts else np.empty(0, dtype=self.dtype)
        if self._vocab_size is not None and (largest := int(ids.max(initial=0))) >= self._vocab_size:
            raise DamagedError(f"the stored tokens are damaged: {largest:,} is none of {self._vocab_size:,} ids")
        return ids


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the type of the ids of a vocabulary: uint16 as long as the largest id fits, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def to_token_dtype(ids: npt.NDArray[Any], vocab_size: int) -> Tokens:
    """Return `ids` in the type of a store. Raises ValueError for an id outside the vocabulary."""
    if ids.size and (largest := int(ids.max())) >= vocab_size:
        raise ValueError(f"id {largest} is outside the vocabulary of {vocab_size}")
    return ids.astype(token_dtype(vocab_size), copy=False)


def sample_evenly(tokens: Tokens | MappedTokens, limit: int, parts: int) -> Tokens:
    """Return (n,) `tokens` if there are at most `limit`, else `parts` slices of them, spread evenly, end to end."""
    if len(tokens) <= limit:
        return tokens[:]
    size = limit // parts
    starts = np.linspace(0, len(tokens) - size, parts, dtype=np.int64).tolist()
    return np.concatenate([tokens[start : start + size] for start in starts])
