"""The lines of a text: how many, how long, and how they end."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_LONGEST_COUNTED = (1 << 16) - 1  # longer lines count as this long where the median is looked up


@dataclass(frozen=True)
class LineFacts:
    """Lines as an editor counts them; lengths in characters, without the newline."""

    lines: int
    blank: int
    median_length: int
    mean_length: float
    longest: int
    crlf: int
    """Lines that end in carriage return and newline."""


class LineLengths:
    """Counts lines in stretches of text, told to it in code points, one after the other."""

    def __init__(self) -> None:
        self._histogram = np.zeros(_LONGEST_COUNTED + 1, dtype=np.int64)
        self._read = 0  # characters so far
        self._start = 0  # of the line that has not ended yet
        self._total = 0
        self._longest = 0
        self._crlf = 0
        self._last = 0  # code point

    def add(self, codes: npt.NDArray[np.uint32]) -> None:
        """Go on with the next stretch, which may begin in the middle of a line. It is not empty."""
        newlines = np.flatnonzero(codes == 10)
        before = np.where(newlines > 0, codes[newlines - 1], self._last)
        self._crlf += int(np.count_nonzero(before == 13))
        ends = newlines + self._read
        self._count(np.diff(ends, prepend=self._start - 1) - 1 - (before == 13))  # a CRLF is no part of its line
        if len(ends):
            self._start = int(ends[-1]) + 1
        self._read += len(codes)
        self._last = int(codes[-1])

    def facts(self) -> LineFacts:
        if self._read > self._start:  # a last line without a newline
            self._count(np.array([self._read - self._start]))
            self._start = self._read
        lines = int(self._histogram.sum())
        middle = int(np.searchsorted(np.cumsum(self._histogram), (lines + 1) // 2))
        return LineFacts(
            lines, int(self._histogram[0]), middle, self._total / lines if lines else 0.0, self._longest, self._crlf
        )

    def _count(self, lengths: npt.NDArray[np.int64]) -> None:
        self._histogram += np.bincount(np.minimum(lengths, _LONGEST_COUNTED), minlength=len(self._histogram))
        self._total += int(lengths.sum())
        self._longest = max(self._longest, int(lengths.max(initial=0)))
