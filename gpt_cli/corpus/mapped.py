"""Ids that stay on the disk: mapped into memory, of which the system keeps only the pages that were read lately."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint16 | np.uint32]


class MappedTokens:
    """(n,) ids that lie in one or several files, end to end. What is read is copied."""

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

    def __getitem__(self, stretch: slice) -> Ids:
        """The ids of a stretch without a step."""
        start, stop, step = stretch.indices(len(self))
        if step != 1:
            raise ValueError("a stretch of mapped ids has no step")
        return self._read(start, max(start, stop))

    def windows(self, starts: Sequence[int], length: int) -> Ids:
        """(W, length): the ids from each of the W `starts` on."""
        return np.stack([self._read(start, start + length) for start in starts])

    def _read(self, start: int, stop: int) -> Ids:
        found: list[Ids] = []
        at = start
        while at < stop:
            i = bisect_right(self._starts, at) - 1
            found.append(self._pieces[i][at - self._starts[i] : stop - self._starts[i]])
            at += len(found[-1])
        return np.concatenate(found) if found else np.empty(0, dtype=self.dtype)
