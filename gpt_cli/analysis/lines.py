"""Statistics of the lines of a text: number, lengths, line ends."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_COUNTED = (1 << 16) - 1  # longer lines count as this long in the histogram for the median


@dataclass(frozen=True)
class LineStats:
    """Statistics of lines; lengths are in characters, without the newline."""

    lines: int
    blank: int
    median_length: int
    """MAX_COUNTED for that or more."""
    mean_length: float
    longest: int
    crlf: int
    """Lines that end in carriage return and newline."""


class LineLengths:
    """Counts lines in consecutive pieces of text, given as code points."""

    def __init__(self) -> None:
        self._histogram = np.zeros(MAX_COUNTED + 1, dtype=np.int64)
        self._read = 0  # characters so far
        self._start = 0  # of the line that has not ended yet
        self._total = 0
        self._longest = 0
        self._crlf = 0
        self._last = 0  # code point

    def add(self, codes: npt.NDArray[np.uint32]) -> None:
        """Count the next piece, which is not empty and may begin in the middle of a line."""
        newlines = np.flatnonzero(codes == 10)
        previous = np.where(newlines > 0, codes[newlines - 1], self._last)
        self._crlf += int(np.count_nonzero(previous == 13))
        ends = newlines + self._read
        self._count(np.diff(ends, prepend=self._start - 1) - 1 - (previous == 13))  # without the carriage return
        if len(ends):
            self._start = int(ends[-1]) + 1
        self._read += len(codes)
        self._last = int(codes[-1])

    def end_line(self) -> None:
        """Count the line that has not ended yet, if there is one: what follows is another."""
        if self._read > self._start:
            self._count(np.array([self._read - self._start]))
            self._start = self._read

    def stats(self) -> LineStats:
        self.end_line()
        lines = int(self._histogram.sum())
        middle = int(np.searchsorted(np.cumsum(self._histogram), (lines + 1) // 2))
        return LineStats(
            lines, int(self._histogram[0]), middle, self._total / lines if lines else 0.0, self._longest, self._crlf
        )

    def _count(self, lengths: npt.NDArray[np.int64]) -> None:
        self._histogram += np.bincount(np.minimum(lengths, MAX_COUNTED), minlength=len(self._histogram))
        self._total += int(lengths.sum())
        self._longest = max(self._longest, int(lengths.max(initial=0)))
