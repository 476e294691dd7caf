"""The text of a corpus, however long: read in blocks, as often as needed, and the same every time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.readers import ReaderOptions, TextFile
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import Notify, UserError

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

BLOCK = 1 << 19  # bytes of text that an encoding worker holds at once
CACHE_BYTES = 32 << 20  # bytes that stay in memory, so that a text up to this is read once; or 100,000 small files
_OVERHEAD = 256  # bytes of a block besides its text


@dataclass(frozen=True, slots=True)
class SplitBlock:
    """A part of a document, all of it in one split; of a document that is not divided yet, this is `train`."""

    split: Split
    data: bytes
    """The text: whole characters of UTF-8, at most BLOCK bytes as it is read."""
    starts: bool = True
    """True if the document, or its part in this split, starts here."""
    ends: bool = True
    """True if the document, or its part in this split, ends here."""
    ends_document: bool = True
    """True if the document ends here."""
    followed: bool = False
    """True if another document follows: an end of text goes between them, if the vocabulary has one."""

    @property
    def text(self) -> str:
        return self.data.decode()


@dataclass(frozen=True)
class SourceFile:
    """A file of the corpus, with its weight and split from the config."""

    file: TextFile
    weight: int
    """Repetitions of its training text."""
    validates: bool
    """True if all of it is validation text: `data.val_source`."""


class CorpusText:
    """All files of a corpus. A short text is kept in memory; a long one is read anew in every pass."""

    def __init__(self, files: list[SourceFile], note: Notify) -> None:
        self.files = files
        self.notes: list[str] = []
        """The notes of reading it."""
        self._pass_on = note
        self._is_muted = False
        self._cache: dict[int, list[SplitBlock]] | None = {}
        self._cache_left = CACHE_BYTES

    @classmethod
    def find(cls, data: DataConfig, note: Notify) -> "CorpusText":
        """Return the files that `data.source` and `data.val_source` name. Raises as `find_files` does."""
        options = ReaderOptions.of(data)
        sources = [
            *((source, weight, False) for source, weight in zip(data.sources, data.source_weights, strict=True)),
            *((source, 1, True) for source in data.val_sources),
        ]
        return cls(
            [
                SourceFile(file, weight, validates)
                for source, weight, validates in sources
                for file in find_files(source, options, note)
            ],
            note,
        )

    @property
    def is_in_memory(self) -> bool:
        """True if the whole text stays in memory after it was read once."""
        return self._cache is not None

    @cached_property
    def size(self) -> int | None:
        """Bytes of text, where known before it is read."""
        sizes = [member.file.size for member in self.files]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def begins_validation(self, number: int) -> bool:
        """True if file `number` is the first of `data.val_source`."""
        return self.files[number].validates and (number == 0 or not self.files[number - 1].validates)

    def blocks(self, number: int) -> Iterator[SplitBlock]:
        """Yield the blocks of file `number`, at least one. Notes of the reader are passed on until `mute_notes`."""
        if self._cache is not None and number in self._cache:
            yield from self._cache[number]
            return
        file_blocks: list[SplitBlock] = []
        empty = True
        file = self.files[number].file
        for _, pieces in file.read(self._note):
            empty = False
            for block in _regroup(pieces):
                if self._cache is not None:
                    file_blocks.append(block)
                    self._cache_left -= len(block.data) + _OVERHEAD
                    if self._cache_left < 0:
                        self._cache, file_blocks = None, []
                yield block
        if empty:
            raise UserError(f"{file.name} has no text")
        if self._cache is not None:
            self._cache[number] = file_blocks

    def mute_notes(self) -> None:
        """Drop the notes of later passes, which would repeat those of the first."""
        self._is_muted = True

    def _note(self, message: str) -> None:
        if not self._is_muted:
            self.notes.append(message)
            self._pass_on(message)


def _regroup(pieces: Iterable[bytes]) -> Iterator[SplitBlock]:
    """Regroup the pieces of a document into blocks: as many characters as fit, fewer only at the end."""
    data, starts = b"", True
    for piece in pieces:
        data = data + piece if data else piece
        start = 0
        while len(data) - start > BLOCK and (end := _character_boundary(data, start, start + BLOCK)) < len(data):
            yield SplitBlock("train", data[start:end], starts, ends=False, ends_document=False)
            start, starts = end, False
        data = data[start:]
    yield SplitBlock("train", data, starts)


def _character_boundary(data: bytes, start: int, end: int) -> int:
    """Return the index after the last character of UTF-8 that ends in `data[start:end]`; else after the first one."""
    boundary = end
    while boundary > start and data[boundary] & 0xC0 == 0x80:  # 10xxxxxx: inside a character
        boundary -= 1
    if boundary == start:
        boundary = end
        while boundary < len(data) and data[boundary] & 0xC0 == 0x80:
            boundary += 1
    return boundary


def count_characters(data: bytes) -> int:
    """Count the characters of UTF-8 bytes: the bytes that do not begin with the bits 10."""
    return len(data) if data.isascii() else int(np.count_nonzero(np.frombuffer(data, dtype=np.int8) >= -64))
