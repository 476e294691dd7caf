"""Cut a text into blocks of equal size, and sample a large one."""

from collections.abc import Iterable, Iterator

BLOCK = 1 << 20  # characters
PART = 1 << 16  # characters; the unit of sampling
_LATEST = 16  # last parts, which are always kept, as the validation text may be at the end


def text_blocks(pieces: Iterable[str], start: int = 0, size: int = BLOCK) -> Iterator[str]:
    """Regroup pieces of a text from character `start` on: all blocks but the last end at multiples of `size`."""
    pending: list[str] = []
    room = size - start % size
    for text in pieces:
        rest = text
        while len(rest) >= room:
            yield "".join([*pending, rest[:room]])
            rest, pending, room = rest[room:], [], size
        if rest:
            pending.append(rest)
            room -= len(rest)
    if pending:
        yield "".join(pending)


class SystematicSample:
    """The whole of a short text, or evenly spaced parts of a long one and its end."""

    def __init__(self, limit: int = 1 << 24) -> None:
        self.stride = 1
        """One of `stride` parts is kept; 1: all."""
        self.characters = 0
        """Characters added so far."""
        self._limit = limit
        self._parts: dict[int, str] = {}  # by number

    def add(self, text: str) -> None:
        """Add the next characters of the text."""
        for part in text_blocks([text], self.characters, PART):
            number = self.characters // PART
            self._parts[number] = self._parts.get(number, "") + part
            self.characters += len(part)
        n_parts = -(-self.characters // PART)
        while -(-n_parts // self.stride) * PART > self._limit:
            self.stride *= 2
        for number in [n for n in self._parts if n % self.stride and n < n_parts - _LATEST]:
            del self._parts[number]

    def text(self, start: int, end: int, limit: int | None = None) -> str:
        """Return the sampled characters from `start` to `end`, subsampled by evenly spaced parts to at most `limit`."""
        clipped = [text[max(0, start - n * PART) : max(0, end - n * PART)] for n, text in self._parts.items()]
        parts = [text for text in clipped if text]
        if limit is not None and sum(map(len, parts)) > limit:
            n_parts = max(1, limit // PART)
            parts = [parts[i * len(parts) // n_parts] for i in range(n_parts)]
        return "".join(parts)
