"""Count the characters and the lines of a text, which is added in consecutive pieces, as arrays of code points."""

import unicodedata
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RARE = 5  # a character that occurs less often is hardly learned
MAX_COUNTED = (1 << 16) - 1  # longer lines count as this long in the histogram for the median
_CODE_POINTS = 0x110000
_INVISIBLE = ("Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp")  # control, format, private, unassigned, separators


@dataclass(frozen=True)
class CharacterCount:
    character: str
    code_point: str
    name: str
    count: int


class CharacterCounts:
    def __init__(self) -> None:
        self.counts = np.zeros(_CODE_POINTS, dtype=np.int64)
        """(CODE_POINTS,) count of each code point."""

    def add(self, codes: npt.NDArray[np.uint32]) -> None:
        counts = np.bincount(codes)
        self.counts[: len(counts)] += counts

    @property
    def bytes(self) -> int:
        """Size of the text in UTF-8."""
        return sum(int(self.counts[start:].sum()) for start in (0, 0x80, 0x800, 0x10000))

    def alphabet(self) -> npt.NDArray[np.int64]:
        """Return the (V,) code points that occur, sorted."""
        return np.flatnonzero(self.counts)

    def rare(self) -> tuple[CharacterCount, ...]:
        """Return the characters that occur fewer than 5 times, by code point."""
        return tuple(self._describe(int(code)) for code in self.alphabet() if self.counts[code] < RARE)

    def invisible(self) -> tuple[CharacterCount, ...]:
        """Return control, format, private and unassigned characters, and U+FFFD; without tab, newline and return."""
        return tuple(self._describe(int(code)) for code in self.alphabet() if _is_invisible(chr(code)))

    def _describe(self, code: int) -> CharacterCount:
        name = unicodedata.name(chr(code), "") or ("control" if unicodedata.category(chr(code)) == "Cc" else "")
        return CharacterCount(chr(code), f"U+{code:04X}", name, int(self.counts[code]))


def _is_invisible(character: str) -> bool:
    return character == "\ufffd" or (character not in "\t\n\r" and unicodedata.category(character) in _INVISIBLE)


@dataclass(frozen=True)
class LineStats:
    """Statistics of lines; lengths are in characters, without the line end."""

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
    def __init__(self) -> None:
        self._histogram = np.zeros(MAX_COUNTED + 1, dtype=np.int64)
        self._read = 0  # characters so far
        self._start = 0  # of the line that has not ended yet
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
        self._count(np.diff(ends, prepend=self._start - 1) - 1 - (previous == 13))
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
        lines, cr = int(self._histogram.sum()), self._returns - self._crlf
        return LineStats(
            lines=lines,
            blank=int(self._histogram[0]),
            median_length=int(np.searchsorted(np.cumsum(self._histogram), (lines + 1) // 2)),
            mean_length=(self._read - self._newlines - self._crlf) / lines if lines else 0.0,
            longest=self._longest,
            ends=self._newlines + cr,
            crlf=self._crlf,
            cr=cr,
        )

    def _count(self, lengths: npt.NDArray[np.int64]) -> None:
        self._histogram += np.bincount(np.minimum(lengths, MAX_COUNTED), minlength=len(self._histogram))
        self._longest = max(self._longest, int(lengths.max(initial=0)))
