"""Documents in a column of a Parquet table; what decoding it takes is bounded before it is decoded.

A page is decompressed whole, and its header says how large it becomes: so all headers of a row group are read first
(`parquet_pages`), and from them follows how many rows are decoded at once.
"""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from gpt_cli.corpus.parquet_pages import Page, PageError, read_pages
from gpt_cli.corpus.records import LONGEST_RECORD, Stream, check_silence, find_column
from gpt_cli.errors import UserError
from gpt_cli.files.safe_io import CHUNK, format_size, translate_os_errors

_ROWS = 256  # decoded at once
_BATCH = 32 << 20  # bytes of text that those may be, where they may lie in many pages
_LARGEST_PAGE = 96 << 20  # bytes; DuckDB writes pages of up to 100 million
_LARGEST_DICTIONARY = 16 << 20  # bytes
_MOST_VALUES = 1 << 24  # of a page
_LARGEST_FOOTER = 8 << 20  # bytes: what it describes takes some ten times as much
_MOST_ROW_GROUPS = 50_000
_MOST_EXPANSION = 200  # as of other compressed files
_ALWAYS_ALLOWED = 128 << 20  # bytes of decompressed pages
_DELTA = {5: "DELTA_BINARY_PACKED", 6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY"}  # their counts are inside


def read_parquet(path: Path, key: str, *, numbers: bool = False) -> Iterator[Stream]:
    """One document a row, in the column `key`; empty ones and nulls are passed over. `numbers`: whole numbers are
    read, too, as their digits.

    Raises UserError for what is no such file, and for one with a page of more than 96 MiB, a dictionary or value of
    more than 16 MiB, a footer of more than 8 MiB, 5,000,000 rows without text, or pages that become more than 200
    times what they are in the file (128 MiB are always allowed; the same holds for the text itself).
    """
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")  # optional: only who has .parquet files needs it
        arrow: Any = importlib.import_module("pyarrow")
    except ImportError as error:
        raise UserError(
            f"reading {path} needs the package pyarrow", hint="pip install 'gpt-cli[data]', or: pip install pyarrow"
        ) from error
    try:
        with translate_os_errors("read", path), path.open("rb") as stream, path.open("rb", buffering=0) as headers:
            _check_footer(path, headers)
            table = parquet.ParquetFile(
                stream, buffer_size=CHUNK, pre_buffer=False, thrift_container_size_limit=_MOST_ROW_GROUPS
            )
            find_column(str(path), key, list(table.schema_arrow.names))
            kind = table.schema_arrow.field(key).type
            is_number = numbers and arrow.types.is_integer(kind)
            if not (is_number or arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
                raise UserError(f"the column '{key}' of {path} holds {kind}, not text")
            column = _find_leaf(path, table, key)
            raw = arrow.large_binary() if arrow.types.is_large_string(kind) else arrow.binary()
            chunks = [table.metadata.row_group(group).column(column) for group in range(table.num_row_groups)]
            compressed = sum(max(0, chunk.total_compressed_size) for chunk in chunks)
            if compressed > os.fstat(headers.fileno()).st_size:
                raise _damaged(path, "its row groups are longer than the file")
            pages, text = _Limit(path, compressed), _Limit(path, compressed)
            row = silence = 0
            for group, rows in _batch_sizes(path, headers, chunks, pages):
                for batch in table.iter_batches(rows, row_groups=[group], columns=[key], use_threads=False):
                    silence += len(batch)
                    check_silence(str(path), silence)
                    for number, value in enumerate(
                        (batch.column(0).cast(arrow.string()) if is_number else batch.column(0)).view(raw),
                        start=row + 1,
                    ):
                        if (buffer := value.as_buffer()) is not None and buffer.size:
                            silence = 0
                            text.add(buffer.size)  # a dictionary's value may be there a million times
                            where = f"{path}:{number}"
                            yield where, [_checked(buffer, where)]
                    row += len(batch)
    except MemoryError as error:  # pyarrow's own is one of its exceptions, too, and says nothing about the file
        raise UserError(
            f"there is too little memory to read {path}", hint="free some, or write it with smaller row groups"
        ) from error
    except arrow.ArrowException as error:
        raise _damaged(path, str(error).splitlines()[0][:200]) from error


def _check_footer(path: Path, stream: IO[bytes]) -> None:
    """Raise UserError for a footer that is larger than is read here: it is decoded whole, and first."""
    size = os.fstat(stream.fileno()).st_size
    stream.seek(max(0, size - 8))
    length = int.from_bytes(stream.read(8)[:4], "little")
    if _LARGEST_FOOTER < length <= size:
        raise UserError(
            f"{path} describes itself in {format_size(length)}, more than the {format_size(_LARGEST_FOOTER)} that are"
            " read here",
            hint="write it with larger row groups, or in several files",
        )


def _find_leaf(path: Path, table: Any, key: str) -> int:
    """Index of the column chunk that holds the text."""
    leaves = [number for number in range(len(table.schema)) if table.schema.column(number).path == key]
    if len(leaves) != 1:
        raise UserError(f"{path} has {len(leaves)} columns '{key}'")
    return leaves[0]


class _Limit:
    """A bound on what a column may expand to."""

    def __init__(self, path: Path, compressed: int) -> None:
        self._path = path
        self._limit = max(_ALWAYS_ALLOWED, _MOST_EXPANSION * compressed)
        self._size = 0

    def add(self, size: int) -> None:
        """Count so many bytes more. Raises UserError where they are too many."""
        self._size += size
        if self._size > self._limit:
            raise UserError(
                f"{self._path} expands to more than {format_size(self._limit)}: that is no ordinary text",
                hint="if you trust it, write it as .jsonl and give that",
            )


def _batch_sizes(path: Path, stream: IO[bytes], chunks: list[Any], limit: _Limit) -> Iterator[tuple[int, int]]:
    """Each row group, and how many of its rows are decoded at once. Raises UserError for one beyond the bounds."""
    for group, chunk in enumerate(chunks):
        start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
        if dictionary is not None and 0 < dictionary < start:
            start = dictionary
        sizes = _Sizes()
        try:
            for page in read_pages(stream, start, chunk.total_compressed_size):
                _check_page(path, page)
                sizes.add(page)
                limit.add(page.size)
        except PageError as error:
            raise _damaged(path, str(error)) from error
        yield group, sizes.rows()


class _Sizes:
    """The largest pages of a row group, from which follows how many rows may be decoded at once."""

    def __init__(self) -> None:
        self._largest = self._dictionary = 1
        self._fewest = self._last = _ROWS  # values of a page, but for the last

    def add(self, page: Page) -> None:
        if page.is_dictionary:
            self._dictionary = max(self._dictionary, page.size)
        elif page.is_data:
            self._largest = max(self._largest, page.size)
            self._fewest, self._last = min(self._fewest, self._last), page.values

    def rows(self) -> int:
        """Row counts of batches that are not much larger than a page may be, whatever the pages hold."""
        touched = 2 if self._fewest >= _ROWS else _ROWS  # pages that _ROWS rows may lie in
        rows = _ROWS if touched * self._largest <= _LARGEST_PAGE else _BATCH // self._largest
        return max(1, min(rows, _BATCH // self._dictionary))


def _check_page(path: Path, page: Page) -> None:
    """Raise UserError for a page that takes more memory than is allowed, or cannot be bounded."""
    limit = _LARGEST_DICTIONARY if page.is_dictionary else _LARGEST_PAGE
    if page.size > limit:
        raise UserError(
            f"{path} has a {'dictionary' if page.is_dictionary else 'page'} of {format_size(page.size)}, more than"
            f" the {format_size(limit)} that are read here",
            hint="write it with smaller row groups",
        )
    if page.values > (page.size // 4 if page.is_dictionary else _MOST_VALUES):
        raise UserError(f"{path} has {page.values:,} values in a page of {format_size(page.size)}")
    if page.encoding in _DELTA:
        raise UserError(
            f"{path} has its text in Parquet's encoding {_DELTA[page.encoding]}, whose size is not known in advance",
            hint="write it anew with pyarrow, which uses PLAIN",
        )


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is not a whole Parquet file: {reason}")


def _checked(buffer: Any, where: str) -> bytes:
    """The bytes of a value. Raises UserError where they are too many, or not UTF-8."""
    if buffer.size > LONGEST_RECORD:
        raise UserError(
            f"this text is longer than {format_size(LONGEST_RECORD)}, the most that is read from a table", where=where
        )
    data = bytes(buffer)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"this text is not UTF-8: byte at offset {error.start:,}", where=where) from error
    return data
