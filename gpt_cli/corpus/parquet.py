"""Records of a Parquet table, decoded in batches of few enough rows to bound their memory."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from gpt_cli.corpus.records import LONGEST_RECORD, Record, check_length, twice_error
from gpt_cli.corpus.stored_file import StoredFile
from gpt_cli.errors import Notify, UserError, first_line, require_package
from gpt_cli.files.durable import CHUNK
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.terminal.words import format_size

_INSTALL = "gpt-cli[data]"
_MAX_BATCH_ROWS = 256  # decoded at once
_BATCH_BYTES = 64 << 10  # of the values decoded at once, if they have the average length
_MAX_BATCH_BYTES = 128 << 20  # if they have the greatest
_MAX_LIST = 1 << 29  # bytes of a list of average length, if all its texts were the longest
_SMALL_CHUNK = 4 << 20  # bytes of a column chunk whose dictionary need not be looked at
_ALWAYS_ALLOWED = 128 << 20  # bytes of a column chunk, of which a page may be all
_MAX_EXPANSION = 100  # of a larger chunk: text compresses 3 to 10 times
_MAX_ROW_GROUPS = 50_000


def read_parquet(file: StoredFile, keys: Collection[str], _encoding: str, _note: Notify) -> Iterator[Record]:
    """A record for each row, with the columns `keys`; the first row alone, with all columns, where no key is named.

    Raises UserError for a file that is not Parquet, one of `keys` in two columns, and what is too large to be decoded:
    a value, the footer, or a column of a row group that expands to more than 100 times its size (128 MiB are allowed).
    """
    path = file.path
    arrow = require_package("pyarrow", f"reading {path} needs", _INSTALL)
    require_package("pyarrow.parquet", f"reading {path} needs", _INSTALL)
    with translate_os_errors("read", path), _translate_errors(path, arrow), file.open() as stream:
        table = _Table(path, stream, arrow)
        names: list[str] = table.names
        if twice := next((key for key in keys if names.count(key) > 1), None):
            raise twice_error(f"{path} has {names.count(twice)} columns '{twice}'")
        if not keys:
            yield Record(f"{path}:1", table.first_row())
            return
        columns = [name for name in names if name in keys]
        others = {} if set(keys) <= set(names) else dict.fromkeys(names)
        for number, row in enumerate(table.rows(columns), 1):
            yield Record(f"{path}:{number}", {**others, **dict(zip(columns, row, strict=True))})


@contextmanager
def _translate_errors(path: Path, arrow: Any) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:  # pyarrow's ArrowMemoryError is one, too
        raise UserError(f"there is too little memory to read {path}") from error
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{path} is not a whole Parquet file: {first_line(error)[:200]}") from error


class _Table:
    """An open Parquet file."""

    def __init__(self, path: Path, stream: IO[bytes], arrow: Any) -> None:
        """Raises UserError for a footer that is too large: pyarrow decodes it whole, to some ten times its size."""
        arrow.set_memory_pool(arrow.system_memory_pool())  # mimalloc, the default, keeps some 40 MB
        self._path, self._size, self._arrow = path, stream.seek(0, os.SEEK_END), arrow
        stream.seek(max(0, self._size - 8))
        footer = int.from_bytes(stream.read(4), "little")
        if LONGEST_RECORD < footer < self._size:
            raise UserError(f"{path} has a footer of {format_size(footer)}, above {format_size(LONGEST_RECORD)}")
        limits = {"thrift_container_size_limit": _MAX_ROW_GROUPS}
        self._open: Any = partial(arrow.parquet.ParquetFile, stream, buffer_size=CHUNK, pre_buffer=False, **limits)
        self._file = self._open()
        self.names: list[str] = self._file.schema_arrow.names

    def first_row(self) -> dict[str, Any]:
        """The first row. A column is left out that cannot be read."""
        row = {}
        for name in (name for name in self.names if self.names.count(name) == 1):
            with suppress(UserError, StopIteration):
                row[name] = next(self.rows([name]))[0]
        return row

    def rows(self, columns: list[str]) -> Iterator[tuple[Any, ...]]:
        """The values of each row, in Python's types. Raises UserError for one that is too long."""
        if not columns:
            yield ()
            return
        start = 1
        for group in range(self._file.num_row_groups):
            rows = min(self._rows_at_once(group, column) for column in columns)
            for batch in self._file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
                yield from zip(*(self._values(batch.column(column), start) for column in columns), strict=True)
                start += batch.num_rows

    def _values(self, column: Any, start: int) -> list[Any]:
        """The values of an array whose first one is of row `start`."""
        if hasattr(column, "dictionary"):  # of the whole row group
            column = column.cast(column.type.value_type)
        if column.nbytes > LONGEST_RECORD:
            for index in range(len(column)):
                check_length(column.slice(index, 1).nbytes, "value", str(self._path), start + index)
        try:
            values: list[Any] = column.to_pylist()
        except UnicodeDecodeError as error:
            row = start
            with suppress(UnicodeDecodeError):
                for row, value in enumerate(column, start):  # noqa: B007 - the row that fails is the last
                    value.as_py()
            reason = f"this text is not UTF-8: byte at offset {error.start:,}"
            raise UserError(reason, where=f"{self._path}:{row}") from error
        return values

    def _rows_at_once(self, group: int, column: str) -> int:
        """The rows of a batch, so that its values take _BATCH_BYTES. Raises UserError for what is too large."""
        metadata, schema = self._file.metadata.row_group(group), self._file.schema
        average = longest = 1
        for index in range(len(schema)):
            leaf, chunk = schema.column(index).path, metadata.column(index)
            if not f"{leaf}.".startswith(f"{column}."):
                continue
            size = chunk.total_uncompressed_size
            if size > max(_ALWAYS_ALLOWED, _MAX_EXPANSION * min(chunk.total_compressed_size, self._size)):
                raise UserError(f"{self._path} expands to {format_size(size)} in a row group: that is no ordinary text")
            average += size // max(1, metadata.num_rows)
            values = -(-chunk.num_values // max(1, metadata.num_rows))  # of a row; of a list several
            if "DELTA_BYTE_ARRAY" in chunk.encodings:  # the beginning of a value may be in many rows
                longest += size
            elif chunk.has_dictionary_page and chunk.physical_type == "BYTE_ARRAY":
                shared = size if size <= _SMALL_CHUNK and values == 1 else self._longest_shared(group, leaf, size)
                if values > 1 and shared * values > _MAX_LIST:
                    raise UserError(f"{self._path} has lists of {values:,} texts of up to {format_size(shared)}")
                longest += shared * values
        return max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // average, _MAX_BATCH_BYTES // longest))

    def _longest_shared(self, group: int, leaf: str, default: int) -> int:
        """Bytes of the longest text in the dictionary of a column chunk; `default` if there is none or it fails."""
        table = self._open(metadata=self._file.metadata, read_dictionary=[leaf])
        with suppress(self._arrow.ArrowException, StopIteration):
            batch = next(table.iter_batches(1, row_groups=[group], columns=[leaf], use_threads=False))
            arrays = batch.columns
            while arrays:
                if hasattr(array := arrays.pop(), "dictionary"):
                    return max((getattr(value.as_buffer(), "size", 0) for value in array.dictionary), default=0)
                arrays += (
                    array.flatten() if hasattr(array, "field") else [array.values] if hasattr(array, "values") else []
                )
        return default
