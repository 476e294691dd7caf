"""Cut a text into blocks of equal size, and sample a large one."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

BLOCK = 1 << 20  # characters
PART = 1 << 16  # characters; the unit of sampling
_LATEST = 16  # last parts, which are always kept, as the validation text may be at the end


@dataclass(frozen=True)
class TextSpan:
    """A part of the text, and its start in characters."""

    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def text_blocks(pieces: Iterable[str], size: int = BLOCK) -> Iterator[TextSpan]:
    """Regroup the pieces of a text into blocks of `size` characters; the last may be shorter."""
    start = length = 0
    pending: list[str] = []
    for text in pieces:
        for index in range(0, len(text), size):
            piece = text[index : index + size]
            pending.append(piece)
            length += len(piece)
            if length >= size:
                joined = "".join(pending)
                yield TextSpan(start, joined[:size])
                start, length, pending = start + size, length - size, [joined[size:]]
    if length:
        yield TextSpan(start, "".join(pending))


class SystematicSample:
    """The whole of a short text, or evenly spaced parts of a long one and its end."""

    def __init__(self, limit: int = 1 << 24) -> None:
        self.stride = 1
        """One of `stride` parts is kept; 1: all."""
        self.characters = 0
        """Characters added so far."""
        self._limit = limit
        self._sampled: list[TextSpan] = []
        self._latest: deque[TextSpan] = deque(maxlen=_LATEST)

    def add(self, block: TextSpan) -> None:
        """Add the next block; its length is a multiple of 65,536 unless it is the last."""
        for offset in range(0, len(block.text), PART):
            part = TextSpan(block.start + offset, block.text[offset : offset + PART])
            self._latest.append(part)
            if part.start // PART % self.stride == 0:
                self._sampled.append(part)
        self.characters = block.end
        while len(self._sampled) * PART > self._limit:
            self.stride *= 2
            self._sampled = [part for part in self._sampled if part.start // PART % self.stride == 0]

    def text(self, start: int, end: int, limit: int | None = None) -> str:
        """The sampled characters from `start` to `end`, subsampled to at most `limit`."""
        parts = {part.start: part for part in (*self._sampled, *self._latest)}
        clipped = [_clip(parts[position], start, end) for position in sorted(parts)]
        return "".join(part.text for part in _subsample([part for part in clipped if part.text], limit))


def _subsample(parts: Sequence[TextSpan], limit: int | None) -> list[TextSpan]:
    """All parts if they have at most `limit` characters in all, else evenly spaced ones."""
    if limit is None or sum(len(part.text) for part in parts) <= limit:
        return list(parts)
    n_parts = max(1, limit // PART)
    return [parts[i * len(parts) // n_parts] for i in range(n_parts)]


def _clip(part: TextSpan, start: int, end: int) -> TextSpan:
    first = min(max(start, part.start), part.end)
    return TextSpan(first, part.text[first - part.start : max(first, end) - part.start])
