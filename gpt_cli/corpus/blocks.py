"""A text in blocks of equal size, and a sample of blocks where it is large."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpt_cli.corpus.divided import DividedText
from gpt_cli.corpus.survey import Progress

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


def text_blocks(pieces: Iterable[str], size: int = BLOCK) -> Iterator[Part]:
    """A text that comes in pieces, cut every `size` characters."""
    start = length = 0
    held: list[str] = []
    for text in pieces:
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


@dataclass(frozen=True)
class TextSample:
    """Both parts of a text, or of evenly spaced parts of it."""

    train: str
    val: str
    characters: int
    """Of the whole of both."""

    @property
    def whole(self) -> bool:
        """Whether nothing was left out."""
        return len(self.train) + len(self.val) == self.characters


def sample_text(text: DividedText, progress: Progress) -> TextSample:
    """Both parts of a text of up to 16 million characters, or so much of a longer one. Raises what reading raises."""
    sample = BlockSample()
    cut = 0

    def pieces() -> Iterator[str]:
        nonlocal cut
        for stretch in text.stretches():
            said = stretch.text
            cut += len(said) if stretch.split == "train" else 0
            progress("sampling", stretch.done, text.size)
            yield said

    for block in text_blocks(pieces()):
        sample.add(block)
    text.check(cut, sample.characters - cut)
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
