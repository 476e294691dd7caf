"""A text in blocks of equal size, and a sample of blocks where it is large."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpt_cli.analysis.split_text import SplitText
from gpt_cli.corpus.scan import StageProgress

BLOCK = 1 << 20  # characters looked at together
_PART = 1 << 16  # characters that a sample takes or leaves
_LATEST = 16  # parts that are kept in any case, so that there is something to validate on


@dataclass(frozen=True)
class TextSpan:
    """A stretch of the text: where it starts, in characters, and what it says."""

    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def text_blocks(pieces: Iterable[str], size: int = BLOCK) -> Iterator[TextSpan]:
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
                yield TextSpan(start, whole[:size])
                start, length, held = start + size, length - size, [whole[size:]]
    if length:
        yield TextSpan(start, "".join(held))


@dataclass(frozen=True)
class TextSample:
    """Both parts of a text, or of evenly spaced parts of it."""

    train: str
    val: str
    characters: int
    """Characters of the whole of both."""

    @property
    def whole(self) -> bool:
        """True if nothing was left out."""
        return len(self.train) + len(self.val) == self.characters


def sample_text(text: SplitText, progress: StageProgress) -> TextSample:
    """Both parts of a text of up to 16 million characters, or so much of a longer one. Raises what reading raises."""
    sample = SystematicSample()
    cut = 0

    def pieces() -> Iterator[str]:
        nonlocal cut
        for stretch in text.chunks():
            said = stretch.text
            cut += len(said) if stretch.split == "train" else 0
            progress("sampling", stretch.done, text.size)
            yield said

    for block in text_blocks(pieces()):
        sample.add(block)
    text.check(cut, sample.characters - cut)
    return TextSample(sample.text(0, cut), sample.text(cut, sample.characters), sample.characters)


class SystematicSample:
    """The text itself while it is short, evenly spaced parts of it when it is not, and always its end."""

    def __init__(self, limit: int = 1 << 24) -> None:
        self.stride = 1
        """One part in so many is kept. 1: the sample is the text."""
        self.characters = 0
        """Seen so far."""
        self._limit = limit
        self._kept: list[TextSpan] = []
        self._latest: deque[TextSpan] = deque(maxlen=_LATEST)

    def add(self, block: TextSpan) -> None:
        """Take the block that follows those before; its length is a multiple of 65,536 unless it is the last."""
        for place in range(0, len(block.text), _PART):
            part = TextSpan(block.start + place, block.text[place : place + _PART])
            self._latest.append(part)
            if part.start // _PART % self.stride == 0:
                self._kept.append(part)
        self.characters = block.end
        while len(self._kept) * _PART > self._limit:
            self.stride *= 2
            self._kept = [part for part in self._kept if part.start // _PART % self.stride == 0]

    def text(self, start: int, end: int, limit: int | None = None) -> str:
        """The kept characters from `start` to `end`, evenly thinned to at most `limit` characters."""
        known = {part.start: part for part in (*self._kept, *self._latest)}
        inside = [_clip(known[place], start, end) for place in sorted(known)]
        return "".join(part.text for part in _subsample([part for part in inside if part.text], limit))


def _subsample(parts: Sequence[TextSpan], limit: int | None) -> list[TextSpan]:
    """All parts if they have at most `limit` characters, else as many as have, evenly spaced."""
    if limit is None or sum(len(part.text) for part in parts) <= limit:
        return list(parts)
    keep = max(1, limit // _PART)
    return [parts[i * len(parts) // keep] for i in range(keep)]


def _clip(part: TextSpan, start: int, end: int) -> TextSpan:
    first = min(max(start, part.start), part.end)
    return TextSpan(first, part.text[first - part.start : max(first, end) - part.start])
