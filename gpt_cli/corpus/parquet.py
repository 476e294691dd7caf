"""Records of a Parquet table, with bounds on memory that are checked before anything is decoded.

A page is decompressed whole, and its header has its decompressed size: so all page headers of a row group are read
first (`parquet_pages`), and the number of rows decoded at once follows from them.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from gpt_cli.corpus.parquet_pages import Page, PageError, read_pages
from gpt_cli.corpus.records import LONGEST_RECORD, Record, twice_error
from gpt_cli.errors import UserError, first_line, require_package
from gpt_cli.files.durable import CHUNK
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.terminal.words import format_size

_INSTALL = "gpt-cli[data]"
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


def read_parquet(path: Path, keys: Collection[str]) -> Iterator[Record]:
    """A record for each row, with the columns `keys`: texts, numbers, lists and objects. The first row, where no key is
    named, with all columns that can be read.

    Raises UserError for a file that is not Parquet, a page of more than 96 MiB, a dictionary or value of more than 16
    MiB, a footer of more than 8 MiB, or pages that expand to more than 200 times their size in the file (128 MiB are
    always allowed; the same holds for the values themselves).
    """
    arrow = require_package("pyarrow", f"reading {path} needs", _INSTALL)
    parquet = require_package("pyarrow.parquet", f"reading {path} needs", _INSTALL)
    try:
        with translate_os_errors("read", path), path.open("rb") as stream, path.open("rb", buffering=0) as headers:
            _check_footer(path, headers)
            table = parquet.ParquetFile(
                stream, buffer_size=CHUNK, pre_buffer=False, thrift_container_size_limit=_MAX_ROW_GROUPS
            )
            names: list[str] = table.schema_arrow.names
            for key in keys:
                if names.count(key) > 1:
                    raise twice_error(f"{path} has {names.count(key)} columns '{key}'")
            unique = [name for name in dict.fromkeys(names) if names.count(name) == 1]
            columns = {name: _Column(path, name, table, headers, arrow) for name in unique if not keys or name in keys}
            if not keys:
                yield Record(f"{path}:1", dict(_first_values(columns)))
                return
            others = {} if set(keys) <= columns.keys() else dict.fromkeys(names)
            rows = zip(*(column.values() for column in columns.values()), strict=True) if columns else iter([()])
            for number, row in enumerate(rows, 1):
                values = dict(zip(columns, row, strict=True))
                yield Record(f"{path}:{number}", {**others, **values})
    except MemoryError as error:  # pyarrow's ArrowMemoryError is one, too
        raise UserError(
            f"there is too little memory to read {path}", hint="free some, or write it with smaller row groups"
        ) from error
    except arrow.ArrowException as error:
        raise _damage_error(path, first_line(error)[:200]) from error


def _first_values(columns: "Mapping[str, _Column]") -> Iterator[tuple[str, Any]]:
    for name, column in columns.items():
        with suppress(UserError, StopIteration):  # a column that cannot be read need not be
            yield name, next(column.values())


class _Column:
    """A column of a Parquet file, whose values are read in batches of bounded size."""

    def __init__(self, path: Path, name: str, table: Any, headers: IO[bytes], arrow: Any) -> None:
        self._path, self._name, self._table, self._headers, self._arrow = path, name, table, headers, arrow
        self._type = table.schema_arrow.field(name).type
        leaves = [n for n in range(len(table.schema)) if f"{table.schema.column(n).path}.".startswith(f"{name}.")]
        groups = [table.metadata.row_group(group) for group in range(table.num_row_groups)]
        self._chunks = [[group.column(leaf) for leaf in leaves] for group in groups]
        compressed = sum(max(0, chunk.total_compressed_size) for chunks in self._chunks for chunk in chunks)
        if compressed > os.fstat(headers.fileno()).st_size:
            raise _damage_error(path, "its row groups are longer than the file")
        self._compressed = compressed

    def values(self) -> Iterator[Any]:
        """The values in order: str, int, float, bool, None, or lists and objects of these."""
        types, of_values = self._arrow.types, _ExpansionLimit(self._path, self._compressed)
        is_text = types.is_string(self._type) or types.is_large_string(self._type)
        binary = self._arrow.large_binary() if types.is_large_string(self._type) else self._arrow.binary()
        row = 0
        for group, rows in self._batch_sizes(_ExpansionLimit(self._path, self._compressed)):
            for batch in self._table.iter_batches(rows, row_groups=[group], columns=[self._name], use_threads=False):
                column = batch.column(0)
                for value in column.view(binary) if is_text else column:
                    row += 1
                    location = f"{self._path}:{row}"
                    if not is_text:
                        yield _checked_value(value, location)
                    elif (buffer := value.as_buffer()) is None:
                        yield None
                    else:
                        of_values.add(buffer.size)  # a value of a dictionary may be in a million rows
                        yield _decode_value(buffer, location)

    def _batch_sizes(self, limit: "_ExpansionLimit") -> Iterator[tuple[int, int]]:
        """Yield (row group, rows to decode at once). Raises UserError for a page that is too large."""
        for group, chunks in enumerate(self._chunks):
            sizes = [_page_sizes(self._path, self._headers, chunk, limit) for chunk in chunks if chunk.num_values]
            if sizes:  # else there may be no page at all
                yield group, min(size.rows() for size in sizes)


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


def _page_sizes(path: Path, stream: IO[bytes], chunk: Any, limit: _ExpansionLimit) -> "_PageSizes":
    """The sizes of the pages of a column chunk. Raises UserError for a page that is too large."""
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
    return sizes


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


def _decode_value(buffer: Any, location: str) -> str:
    """The text of a value. Raises UserError if it is too long, or not UTF-8."""
    if buffer.size > LONGEST_RECORD:
        raise _too_long_error(location)
    try:
        return bytes(buffer).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"this text is not UTF-8: byte at offset {error.start:,}", where=location) from error


def _checked_value(value: Any, location: str) -> Any:
    """A value that is no text, in Python's types. Raises UserError if it is too long."""
    nested = getattr(value, "values", None)  # of a list
    if getattr(nested, "nbytes", 0) > LONGEST_RECORD:
        raise _too_long_error(location)
    return value.as_py()


def _too_long_error(location: str) -> UserError:
    return UserError(
        f"this value is longer than {format_size(LONGEST_RECORD)}, the most that is read from a table", where=location
    )
