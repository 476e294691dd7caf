"""The text of a corpus, however long: read in blocks, as often as needed, and the same every time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.formats import Format, TextFile
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import Note, UserError

BLOCK = 1 << 19  # characters: what a process that encodes has at once, which decides its memory
_KEPT = 16 << 20  # characters that stay in memory, so that a text up to this is read once
_OVERHEAD = 256  # bytes of a block besides its text


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a document: BLOCK characters, fewer only where the document ends."""

    name: str
    """Of the document, for messages."""
    text: str
    ends: bool
    """Whether the document ends here."""


@dataclass(frozen=True)
class Member:
    """A file of the corpus, and what the config says of it."""

    file: TextFile
    weight: int
    """How often its training text is repeated."""
    validates: bool
    """Whether all of it is validation text: `data.val_source`."""


class Text:
    """All files of a corpus. A short text is kept in memory; a long one is read anew in every pass."""

    def __init__(self, members: list[Member], note: Note) -> None:
        self.members = members
        self._note = note
        self._kept: dict[int, list[Block]] | None = {}
        self._room = _KEPT

    @classmethod
    def find(cls, data: DataConfig, note: Note) -> "Text":
        """What `data.source` and `data.val_source` name. Raises as `find_files` does."""
        form = Format(data.encoding, data.text_key)
        sources = [data.source] if isinstance(data.source, str) else data.source
        validating = [data.val_source] if isinstance(data.val_source, str) else data.val_source or []
        members = [
            Member(file, weight, validates=False)
            for source, weight in zip(sources, data.weights or [1] * len(sources), strict=True)
            for file in find_files(source, form, note)
        ]
        members += [Member(file, 1, validates=True) for source in validating for file in find_files(source, form, note)]
        return cls(members, note)

    @property
    def is_kept(self) -> bool:
        """Whether it is short enough to be in memory, once it was read."""
        return self._kept is not None

    @property
    def size(self) -> int | None:
        """Bytes of text, where known before it is read."""
        sizes = [member.file.size for member in self.members]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def blocks(self, number: int) -> Iterator[Block]:
        """The blocks of the file `number`, at least one; `note` is told what is worth knowing when it is read first."""
        if self._kept is not None and number in self._kept:
            yield from self._kept[number]
            return
        read: list[Block] = []
        empty = True
        file = self.members[number].file
        for name, pieces in file.read(self._note):
            empty = False
            for block in cut(name, pieces):
                if self._kept is not None:
                    read.append(block)
                    self._room -= len(block.text) + _OVERHEAD
                    if self._room < 0:
                        self._kept, read = None, []
                yield block
        if empty:
            raise UserError(f"{file.name} has no text")
        if self._kept is not None:
            self._kept[number] = read

    def read_again(self) -> None:
        """Say that a pass begins in which what was said before need not be said again."""
        self._note = lambda _: None


def cut(name: str, pieces: Iterable[str]) -> Iterator[Block]:
    """A document in blocks, wherever its pieces end."""
    text = ""
    for piece in pieces:
        taken = 0
        while len(text) + len(piece) - taken > BLOCK:
            missing = BLOCK - len(text)
            yield Block(name, text + piece[taken : taken + missing], ends=False)
            text, taken = "", taken + missing
        text += piece[taken:]
    yield Block(name, text, ends=True)
