"""Memory-mapped token ids: only the pages that were read lately are in memory."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint16 | np.uint32]


class MappedTokens:
    """(n,) ids of one or several files, end to end. Reads return copies."""

    def __init__(self, pieces: Sequence[Ids]) -> None:
        """`pieces` are the ids of the files, mapped; there is at least one."""
        self._pieces = list(pieces)
        self._starts = [0, *accumulate(len(piece) for piece in pieces)]
        self.dtype: np.dtype[Any] = pieces[0].dtype

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of all ids."""
        return len(self) * self.dtype.itemsize

    def __getitem__(self, key: slice) -> Ids:
        """The ids of a slice. Raises ValueError for a step other than 1."""
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise ValueError("a slice of mapped ids has no step")
        return self._read(start, max(start, stop))

    def windows(self, starts: Sequence[int], length: int) -> Ids:
        """(W, length): the ids from each of the W `starts` on."""
        return np.stack([self._read(start, start + length) for start in starts])

    def _read(self, start: int, stop: int) -> Ids:
        parts: list[Ids] = []
        position = start
        while position < stop:
            i = bisect_right(self._starts, position) - 1
            parts.append(self._pieces[i][position - self._starts[i] : stop - self._starts[i]])
            position += len(parts[-1])
        return np.concatenate(parts) if parts else np.empty(0, dtype=self.dtype)
