"""Count the characters of a text; list those that are rare or invisible."""

import unicodedata
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CODE_POINTS = 0x110000
RARE = 5  # a character that occurs less often is hardly learned

_INVISIBLE = ("Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp")  # control, format, private, unassigned, separators
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class CharacterCount:
    character: str
    code_point: str
    name: str
    count: int


class CharacterCounts:
    """Counts the characters of a text, added as arrays of code points."""

    def __init__(self) -> None:
        self.counts = np.zeros(CODE_POINTS, dtype=np.int64)
        """(CODE_POINTS,) count of each code point."""

    def add(self, codes: npt.NDArray[np.uint32]) -> None:
        counts = np.bincount(codes)
        self.counts[: len(counts)] += counts

    @property
    def characters(self) -> int:
        return int(self.counts.sum())

    @property
    def bytes(self) -> int:
        """Size of the text in UTF-8."""
        lengths = (self.counts.sum(), self.counts[0x80:].sum(), self.counts[0x800:].sum(), self.counts[0x10000:].sum())
        return int(sum(lengths))

    def alphabet(self) -> npt.NDArray[np.int64]:
        """(V,) the code points that occur, sorted."""
        return np.flatnonzero(self.counts)

    def rare(self) -> list[CharacterCount]:
        """The characters that occur fewer than 5 times, by code point."""
        return [self._describe(int(code)) for code in np.flatnonzero((self.counts > 0) & (self.counts < RARE))]

    def invisible(self) -> list[CharacterCount]:
        """Control, format, private and unassigned characters, and U+FFFD; without tab, newline and return."""
        return [self._describe(int(code)) for code in self.alphabet() if _is_invisible(chr(code))]

    def _describe(self, code: int) -> CharacterCount:
        name = unicodedata.name(chr(code), "") or ("control" if unicodedata.category(chr(code)) == "Cc" else "")
        return CharacterCount(chr(code), f"U+{code:04X}", name, int(self.counts[code]))


def _is_invisible(character: str) -> bool:
    return character == _REPLACEMENT or (character not in "\t\n\r" and unicodedata.category(character) in _INVISIBLE)
