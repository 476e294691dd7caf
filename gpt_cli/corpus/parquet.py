"""Documents in a column of a Parquet table, with bounds on memory that are checked before anything is decoded.

A page is decompressed whole, and its header has its decompressed size: so all page headers of a row group are read
first (`parquet_pages`), and the number of rows decoded at once follows from them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from textwrap import shorten
from typing import IO, Any

from gpt_cli.corpus.parquet_pages import Page, PageError, read_pages
from gpt_cli.corpus.records import LONGEST_RECORD, Stream, check_empty_records, find_column
from gpt_cli.errors import Notify, UserError, first_line, require_package
from gpt_cli.files.output_path import free_name
from gpt_cli.files.safe_io import CHUNK, format_size, translate_os_errors
from gpt_cli.terminal.plural import plural

_MAX_BATCH_ROWS = 256  # decoded at once
_MAX_BATCH_BYTES = 32 << 20  # bytes of text of a batch whose rows may lie in many pages
_MAX_PAGE = 96 << 20  # bytes; DuckDB writes pages of up to 100 million
_MAX_DICTIONARY = 16 << 20  # bytes
_MAX_PAGE_VALUES = 1 << 24  # of a page
_MAX_FOOTER = 8 << 20  # bytes; parsed it takes some ten times as much
_MAX_ROW_GROUPS = 50_000
_MAX_EXPANSION = 200  # as for other compressed files
_ALWAYS_ALLOWED = 128 << 20  # bytes of decompressed pages
_DELTA_ENCODINGS = {  # their values have no size in the page header
    5: "DELTA_BINARY_PACKED",
    6: "DELTA_LENGTH_BYTE_ARRAY",
    7: "DELTA_BYTE_ARRAY",
}


def read_parquet(path: Path, key: str, note: Notify, *, numbers: bool = False) -> Iterator[Stream]:
    """One document a row, from the column `key`; empty texts are skipped, and so are nulls, which a note counts. With
    `numbers`, an integer column is read as its digits.

    Raises UserError for a file that is not Parquet, a page of more than 96 MiB, a dictionary or value of more than 16
    MiB, a footer of more than 8 MiB, 5,000,000 rows without text, or pages that expand to more than 200 times their
    size in the file (128 MiB are always allowed; the same holds for the text itself).
    """
    how_to_install = "pip install 'gpt-cli[data]', or: pip install pyarrow"
    arrow = require_package("pyarrow", f"reading {path} needs", how_to_install)
    parquet = require_package("pyarrow.parquet", f"reading {path} needs", how_to_install)
    try:
        with translate_os_errors("read", path), path.open("rb") as stream, path.open("rb", buffering=0) as headers:
            _check_footer(path, headers)
            table = parquet.ParquetFile(
                stream, buffer_size=CHUNK, pre_buffer=False, thrift_container_size_limit=_MAX_ROW_GROUPS
            )
            _require_column(path, key, table.schema_arrow, arrow.types)
            column_type = table.schema_arrow.field(key).type
            is_number = numbers and arrow.types.is_integer(column_type)
            if not (is_number or arrow.types.is_string(column_type) or arrow.types.is_large_string(column_type)):
                raise UserError(
                    f"the column '{key}' of {path} holds {shorten(str(column_type), 100)}, not text",
                    hint=_as_lines(path) if _is_text_in_json(arrow.types, column_type, numbers) else None,
                )
            column = _find_leaf(path, table, key)
            binary_type = arrow.large_binary() if arrow.types.is_large_string(column_type) else arrow.binary()
            chunks = [table.metadata.row_group(group).column(column) for group in range(table.num_row_groups)]
            compressed = sum(max(0, chunk.total_compressed_size) for chunk in chunks)
            if compressed > os.fstat(headers.fileno()).st_size:
                raise _damage_error(path, "its row groups are longer than the file")
            arrays = (
                (batch.column(0).cast(arrow.string()) if is_number else batch.column(0)).view(binary_type)
                for group, rows in _batch_sizes(path, headers, chunks, _ExpansionLimit(path, compressed))
                for batch in table.iter_batches(rows, row_groups=[group], columns=[key], use_threads=False)
            )
            yield from _documents(path, key, arrays, _ExpansionLimit(path, compressed), note)
    except MemoryError as error:  # pyarrow's ArrowMemoryError is one, too
        raise UserError(
            f"there is too little memory to read {path}", hint="free some, or write it with smaller row groups"
        ) from error
    except arrow.ArrowException as error:
        raise _damage_error(path, first_line(error)[:200]) from error


def _require_column(path: Path, key: str, schema: Any, types: Any) -> None:
    """Raise as `find_column` does; UserError, with the way out, where the texts seem to be in a nested column."""
    kinds = {name: schema.field(name).type for name in set(schema.names) if schema.names.count(name) == 1}
    nested = sorted((name for name in kinds if types.is_nested(kinds[name])), key=lambda name: name != "messages")
    has_text = any(types.is_string(kind) or types.is_large_string(kind) for kind in kinds.values())
    if key not in schema.names and nested and (nested[0] == "messages" or not has_text):
        raise UserError(
            f"{path} has no column '{key}', and '{nested[0]}' holds {shorten(str(kinds[nested[0]]), 100)}, not text",
            hint=_as_lines(path),
        )
    find_column(str(path), key, list(schema.names))


def _is_text_in_json(types: Any, column_type: Any, labels: bool) -> bool:
    """True for a column that JSON lines may hold as it is read: nested messages, categories, and labels of a bit."""
    return bool(
        types.is_nested(column_type) or types.is_dictionary(column_type) or (labels and types.is_boolean(column_type))
    )


def _as_lines(path: Path) -> str:
    program = (
        f"import json, pyarrow.parquet as p; [print(json.dumps(r)) for r in p.read_table({str(path)!r}).to_pylist()]"
    )
    return f"write it as JSON lines: python -c {quote(program)} > {quote(str(free_name(path.stem, '.jsonl')))}"


def _documents(path: Path, key: str, arrays: Iterator[Any], limit: "_ExpansionLimit", note: Notify) -> Iterator[Stream]:
    """The values of consecutive binary arrays that are not empty; `limit` bounds the text."""
    row = empty_rows = nulls = 0
    for array in arrays:
        empty_rows += len(array)
        nulls += array.null_count
        check_empty_records(str(path), empty_rows)
        for value in array:
            row += 1
            if (buffer := value.as_buffer()) is not None and buffer.size:
                empty_rows = 0
                limit.add(buffer.size)  # a value of a dictionary may be in a million rows
                location = f"{path}:{row}"
                yield location, [_value_bytes(buffer, location)]
    if nulls:
        note(f"{path}: there is nothing (null) in the column '{key}' of {plural(nulls, 'row')}")


def _check_footer(path: Path, stream: IO[bytes]) -> None:
    """Raise UserError for a footer of more than _MAX_FOOTER bytes: pyarrow decodes it whole."""
    size = os.fstat(stream.fileno()).st_size
    stream.seek(max(0, size - 8))
    length = int.from_bytes(stream.read(8)[:4], "little")
    if _MAX_FOOTER < length <= size:
        raise UserError(
            f"{path} describes itself in {format_size(length)}, more than the {format_size(_MAX_FOOTER)} that are"
            " read here",
            hint="write it with larger row groups, or in several files",
        )


def _find_leaf(path: Path, table: Any, key: str) -> int:
    """Index of the column chunk that holds the text."""
    leaves = [number for number in range(len(table.schema)) if table.schema.column(number).path == key]
    if len(leaves) != 1:
        raise UserError(f"{path} has {len(leaves)} columns '{key}'")
    return leaves[0]


class _ExpansionLimit:
    """The limit of the decompressed size of a column."""

    def __init__(self, path: Path, compressed: int) -> None:
        self._path = path
        self._limit = max(_ALWAYS_ALLOWED, _MAX_EXPANSION * compressed)
        self._size = 0

    def add(self, size: int) -> None:
        """Count `size` more bytes. Raises UserError if the limit is exceeded."""
        self._size += size
        if self._size > self._limit:
            raise UserError(
                f"{self._path} expands to more than {format_size(self._limit)}: that is no ordinary text",
                hint="if you trust it, write it as .jsonl and give that",
            )


def _batch_sizes(path: Path, stream: IO[bytes], chunks: list[Any], limit: _ExpansionLimit) -> Iterator[tuple[int, int]]:
    """Yield (row group, rows to decode at once). Raises UserError for a page that is too large."""
    for group, chunk in enumerate(chunks):
        if chunk.num_values == 0:  # it may have no page at all
            continue
        start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
        if dictionary is not None and 0 < dictionary < start:
            start = dictionary
        sizes = _PageSizes()
        try:
            for page in read_pages(stream, start, chunk.total_compressed_size):
                _check_page(path, page)
                sizes.add(page)
                limit.add(page.size)
        except PageError as error:
            raise _damage_error(path, str(error)) from error
        yield group, sizes.rows()


class _PageSizes:
    """The page sizes of a row group, which limit how many of its rows are decoded at once."""

    def __init__(self) -> None:
        self._max_page = self._max_dictionary = 1
        self._min_values = self._last_values = _MAX_BATCH_ROWS  # values of a page, but for the last

    def add(self, page: Page) -> None:
        if page.is_dictionary:
            self._max_dictionary = max(self._max_dictionary, page.size)
        elif page.is_data:
            self._max_page = max(self._max_page, page.size)
            self._min_values, self._last_values = min(self._min_values, self._last_values), page.values

    def rows(self) -> int:
        """The rows of a batch, so that its text is not much larger than the largest page allowed."""
        pages = 2 if self._min_values >= _MAX_BATCH_ROWS else _MAX_BATCH_ROWS  # that a batch spans at most
        rows = _MAX_BATCH_ROWS if pages * self._max_page <= _MAX_PAGE else _MAX_BATCH_BYTES // self._max_page
        return max(1, min(rows, _MAX_BATCH_BYTES // self._max_dictionary))


def _check_page(path: Path, page: Page) -> None:
    """Raise UserError for a page that is too large, or whose size cannot be known before it is decoded."""
    limit = _MAX_DICTIONARY if page.is_dictionary else _MAX_PAGE
    if page.size > limit:
        raise UserError(
            f"{path} has a {'dictionary' if page.is_dictionary else 'page'} of {format_size(page.size)}, more than"
            f" the {format_size(limit)} that are read here",
            hint="write it with smaller row groups",
        )
    if page.values > (page.size // 4 if page.is_dictionary else _MAX_PAGE_VALUES):
        raise UserError(f"{path} has {page.values:,} values in a page of {format_size(page.size)}")
    if page.encoding in _DELTA_ENCODINGS:
        raise UserError(
            f"{path} has its text in Parquet's encoding {_DELTA_ENCODINGS[page.encoding]}, whose size is not known"
            " in advance",
            hint="write it anew with pyarrow, which uses PLAIN",
        )


def _damage_error(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is not a whole Parquet file: {reason}")


def _value_bytes(buffer: Any, location: str) -> bytes:
    """The bytes of a value. Raises UserError if they are too many, or not UTF-8."""
    if buffer.size > LONGEST_RECORD:
        raise UserError(
            f"this text is longer than {format_size(LONGEST_RECORD)}, the most that is read from a table",
            where=location,
        )
    data = bytes(buffer)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"this text is not UTF-8: byte at offset {error.start:,}", where=location) from error
    return data
