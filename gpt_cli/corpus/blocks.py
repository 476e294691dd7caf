"""The documents as one text, in blocks of equal size, and a sample of blocks where the text is large."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpt_cli.corpus.sources import Document
from gpt_cli.errors import UserError

BLOCK = 1 << 20  # characters looked at together
_PART = 1 << 16  # characters that a sample takes or leaves
_LATEST = 16  # parts that are kept in any case, so that there is something to validate on


@dataclass(frozen=True)
class Part:
    """A stretch of the text: where it starts, in characters, and what it says."""

    start: int
    text: str

    @property
    def end(self) -> int:
        """Where the next one starts."""
        return self.start + len(self.text)


def text_blocks(documents: Iterable[Document], size: int = BLOCK) -> Iterator[Part]:
    """The documents as one text, each on lines of its own, cut every `size` characters."""
    start = length = 0
    held: list[str] = []
    for text in _separated(documents):
        for place in range(0, len(text), size):
            piece = text[place : place + size]
            held.append(piece)
            length += len(piece)
            if length >= size:
                whole = "".join(held)
                yield Part(start, whole[:size])
                start, length, held = start + size, length - size, [whole[size:]]
    if length:
        yield Part(start, "".join(held))


def _separated(documents: Iterable[Document]) -> Iterator[str]:
    """The texts, with a newline after each that lacks one and is followed by another."""
    ended = True
    for document in documents:
        if not ended:
            yield "\n"
        yield document.text
        ended = document.text.endswith("\n")


def split_point(characters: int, val_fraction: float) -> int:
    """The character at which validation begins. Raises UserError where a part would have fewer than 2."""
    cut = int((1 - val_fraction) * characters)
    if min(cut, characters - cut) < 2:
        raise UserError(
            f"the text is too small to split: {characters:,} characters, of which {val_fraction:g} validates",
            hint="each part needs at least 2 characters",
        )
    return cut


@dataclass(frozen=True)
class TextSample:
    """Both parts of a text, or of evenly spaced parts of it."""

    train: str
    val: str
    characters: int
    """Of the whole text."""

    @property
    def whole(self) -> bool:
        """Whether nothing was left out."""
        return len(self.train) + len(self.val) == self.characters


def sample_text(documents: Iterable[Document], val_fraction: float) -> TextSample:
    """A text of up to 16 million characters, or so much of a longer one, split as training splits it.

    Raises UserError for one too small to split.
    """
    sample = BlockSample()
    for block in text_blocks(documents):
        sample.add(block)
    cut = split_point(sample.characters, val_fraction)
    return TextSample(sample.text(0, cut), sample.text(cut, sample.characters), sample.characters)


class BlockSample:
    """The text itself while it is short, evenly spaced parts of it when it is not, and always its end."""

    def __init__(self, limit: int = 1 << 24) -> None:
        self.stride = 1
        """One part in so many is kept. 1: the sample is the text."""
        self.characters = 0
        """Seen so far."""
        self._limit = limit
        self._kept: list[Part] = []
        self._latest: deque[Part] = deque(maxlen=_LATEST)

    def add(self, block: Part) -> None:
        """Take the block that follows those before; its length is a multiple of 65,536 unless it is the last."""
        for place in range(0, len(block.text), _PART):
            part = Part(block.start + place, block.text[place : place + _PART])
            self._latest.append(part)
            if part.start // _PART % self.stride == 0:
                self._kept.append(part)
        self.characters = block.end
        while len(self._kept) * _PART > self._limit:
            self.stride *= 2
            self._kept = [part for part in self._kept if part.start // _PART % self.stride == 0]

    def text(self, start: int, end: int, limit: int | None = None) -> str:
        """What is kept of the characters from `start` to `end`, evenly thinned to at most `limit` characters."""
        known = {part.start: part for part in (*self._kept, *self._latest)}
        inside = [_clip(known[place], start, end) for place in sorted(known)]
        return "".join(part.text for part in _thin([part for part in inside if part.text], limit))


def _thin(parts: Sequence[Part], limit: int | None) -> list[Part]:
    """All parts if they have at most `limit` characters, else as many as have, evenly spaced."""
    if limit is None or sum(len(part.text) for part in parts) <= limit:
        return list(parts)
    keep = max(1, limit // _PART)
    return [parts[i * len(parts) // keep] for i in range(keep)]


def _clip(part: Part, start: int, end: int) -> Part:
    first = min(max(start, part.start), part.end)
    return Part(first, part.text[first - part.start : max(first, end) - part.start])
