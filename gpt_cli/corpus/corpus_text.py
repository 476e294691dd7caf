"""The text of a corpus, however long: read in blocks, as often as needed, and the same every time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.readers import ReaderOptions, TextFile
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import Notify, UserError

BLOCK = 1 << 19  # bytes: what a worker that encodes has at once, which decides its memory
_KEPT = 16 << 20  # bytes that stay in memory, so that a text up to this is read once
_OVERHEAD = 256  # bytes of a block besides its text


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A stretch of a document: as many characters as fit into BLOCK bytes, fewer only where the document ends."""

    name: str
    """The document's name, for messages."""
    data: bytes
    """The text, in UTF-8."""
    ends: bool
    """True if the document ends here."""

    @property
    def text(self) -> str:
        return self.data.decode()


@dataclass(frozen=True)
class SourceFile:
    """A file of the corpus, and what the config says of it."""

    file: TextFile
    weight: int
    """Repetitions of its training text."""
    validates: bool
    """True if all of it is validation text: `data.val_source`."""


class CorpusText:
    """All files of a corpus. A short text is kept in memory; a long one is read anew in every pass."""

    def __init__(self, members: list[SourceFile], note: Notify) -> None:
        self.members = members
        self._note = note
        self._kept: dict[int, list[TextBlock]] | None = {}
        self._room = _KEPT

    @classmethod
    def find(cls, data: DataConfig, note: Notify) -> "CorpusText":
        """The files that `data.source` and `data.val_source` name. Raises as `find_files` does."""
        options = ReaderOptions(data.encoding, data.text_key)
        sources = [data.source] if isinstance(data.source, str) else data.source
        validating = [data.val_source] if isinstance(data.val_source, str) else data.val_source or []
        members = [
            SourceFile(file, weight, validates=False)
            for source, weight in zip(sources, data.weights or [1] * len(sources), strict=True)
            for file in find_files(source, options, note)
        ]
        members += [
            SourceFile(file, 1, validates=True) for source in validating for file in find_files(source, options, note)
        ]
        return cls(members, note)

    @property
    def is_cached(self) -> bool:
        """True if it is short enough to be in memory, once it was read."""
        return self._kept is not None

    @property
    def size(self) -> int | None:
        """Bytes of text, where known before it is read."""
        sizes = [member.file.size for member in self.members]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def blocks(self, number: int) -> Iterator[TextBlock]:
        """The blocks of the file `number`, at least one; `note` is told what is worth knowing when it is read first."""
        if self._kept is not None and number in self._kept:
            yield from self._kept[number]
            return
        read: list[TextBlock] = []
        empty = True
        file = self.members[number].file
        for name, pieces in file.read(self._note):
            empty = False
            for block in chunk(name, pieces):
                if self._kept is not None:
                    read.append(block)
                    self._room -= len(block.data) + _OVERHEAD
                    if self._room < 0:
                        self._kept, read = None, []
                yield block
        if empty:
            raise UserError(f"{file.name} has no text")
        if self._kept is not None:
            self._kept[number] = read

    def mute_notes(self) -> None:
        """Begin another pass, in which notes are not repeated."""
        self._note = lambda _: None


def chunk(name: str, pieces: Iterable[bytes]) -> Iterator[TextBlock]:
    """A document in blocks, wherever its pieces end."""
    data = b""
    for piece in pieces:
        data = data + piece if data else piece
        start = 0
        while len(data) - start > BLOCK and (end := _whole(data, start, start + BLOCK)) < len(data):
            yield TextBlock(name, data[start:end], ends=False)
            start = end
        data = data[start:]
    yield TextBlock(name, data, ends=True)


def _whole(data: bytes, start: int, end: int) -> int:
    """The end of the last whole character between `start` and `end`; if there is none, of the first one."""
    border = end
    while border > start and data[border] & 0xC0 == 0x80:  # 10xxxxxx: inside a character
        border -= 1
    if border == start:
        border = end
        while border < len(data) and data[border] & 0xC0 == 0x80:
            border += 1
    return border


def count_characters(data: bytes) -> int:
    """The number of characters of UTF-8 bytes: those that do not begin with the bits 10."""
    return len(data) if data.isascii() else int(np.count_nonzero(np.frombuffer(data, dtype=np.int8) >= -64))
