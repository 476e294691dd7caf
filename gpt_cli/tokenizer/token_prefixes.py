"""The tokens of a vocabulary sorted by their bytes, for prefix searches."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


class TokenPrefixes:
    """Prefix searches, by bisection, in the bytes of the tokens 0 ... V - 1: `pieces`, empty where one has no text."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self._ids = sorted((token for token, piece in enumerate(pieces) if piece), key=pieces.__getitem__)
        self._sorted = [pieces[token] for token in self._ids]
        self._longest = max(map(len, self._sorted), default=0)

    def starting_with(self, data: bytes) -> list[int]:
        """The tokens of which `data` is a prefix."""
        begin = bisect_left(self._sorted, data)
        end = bisect_right(self._sorted, data, begin, key=lambda piece: piece[: len(data)])
        return self._ids[begin:end]

    def inside(self, data: bytes) -> list[int]:
        """The tokens that are proper prefixes of `data`."""
        starts = (data[:length] for length in range(1, min(len(data), self._longest + 1)))
        ranges = ((bisect_left(self._sorted, start), bisect_right(self._sorted, start)) for start in starts)
        return [token for begin, end in ranges for token in self._ids[begin:end]]

    def extensible_end(self, tokens: Sequence[int]) -> int:
        """The largest number of tokens at the end of `tokens` that begin, as bytes, one longer token; 0 for none.

        A token without text is none of them.
        """
        data, count = b"", 0
        for number, token in enumerate(reversed(tokens), start=1):
            data = self.pieces[token] + data
            if not self.pieces[token] or len(data) >= self._longest:
                break
            last = self.starting_with(data)[-1:]
            if last and len(self.pieces[last[0]]) > len(data):
                count = number
        return count
