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
    ends: int
    """Line ends: newlines, and carriage returns without one."""
    crlf: int
    """Line ends that are a carriage return and a newline."""
    cr: int
    """Line ends that are a carriage return alone; they divide no line of `lines`."""


class LineLengths:
    """Counts lines in consecutive pieces of text, given as code points."""

    def __init__(self) -> None:
        self._histogram = np.zeros(MAX_COUNTED + 1, dtype=np.int64)
        self._read = 0  # characters so far
        self._start = 0  # of the line that has not ended yet
        self._total = 0
        self._longest = 0
        self._newlines = 0
        self._returns = 0  # carriage returns, with a newline or without
        self._crlf = 0
        self._last = 0  # code point

    def add(self, codes: npt.NDArray[np.uint32]) -> None:
        """Count the next piece, which is not empty and may begin in the middle of a line."""
        newlines = np.flatnonzero(codes == 10)
        previous = np.where(newlines > 0, codes[newlines - 1], self._last)
        self._newlines += len(newlines)
        self._returns += int(np.count_nonzero(codes == 13))
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
        self._last = 0

    def stats(self) -> LineStats:
        self.end_line()
        lines = int(self._histogram.sum())
        middle = int(np.searchsorted(np.cumsum(self._histogram), (lines + 1) // 2))
        cr = self._returns - self._crlf
        return LineStats(
            lines=lines,
            blank=int(self._histogram[0]),
            median_length=middle,
            mean_length=self._total / lines if lines else 0.0,
            longest=self._longest,
            ends=self._newlines + cr,
            crlf=self._crlf,
            cr=cr,
        )

    def _count(self, lengths: npt.NDArray[np.int64]) -> None:
        self._histogram += np.bincount(np.minimum(lengths, MAX_COUNTED), minlength=len(self._histogram))
        self._total += int(lengths.sum())
        self._longest = max(self._longest, int(lengths.max(initial=0)))
