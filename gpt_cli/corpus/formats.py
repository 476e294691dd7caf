"""What one file holds: a text, or documents under a key of JSON lines, CSV or Parquet. Read as a stream."""

import csv
import importlib
import json
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpt_cli.corpus.compression import expand, is_compressed
from gpt_cli.corpus.decoding import decode, decode_utf8
from gpt_cli.errors import Note, UserError
from gpt_cli.files.disk import CHUNK, format_size, read_chunks, reported

Stream = tuple[str, Iterable[bytes]]
"""A document: its name for messages, and its text in UTF-8, in pieces of whole characters."""

_LONGEST_RECORD = 64 << 20  # characters of a JSON line or CSV row, which have to be in memory at once
_KEPT_IN_MEMORY = 16 << 20  # bytes of standard input, before a temporary file takes it
_ROWS = 256  # of a Parquet table, read at once


@dataclass(frozen=True)
class Format:
    """How files become documents: what `data.encoding` and `data.text_key` say."""

    encoding: str = "utf-8"
    text_key: str = "text"


@dataclass(frozen=True)
class TextFile:
    """A file of text, which can be read more than once."""

    name: str
    size: int | None
    """Bytes of its text, where known before it is read."""
    read: Callable[[Note], Iterator[Stream]]
    """Its documents, in order, none empty; each text is to be read to its end before the next is asked for."""
    plain: Path | None = None
    """Where it lies, if its bytes are the text itself, in some encoding."""


def text_file(path: Path, form: Format) -> TextFile:
    """The file `path`, as its suffix says: .jsonl, .csv and .parquet hold documents, all else is one text."""
    suffix = inner_suffix(path)
    if suffix == ".parquet":
        return TextFile(str(path), None, lambda note: _read_parquet(path, form.text_key))
    if is_compressed(path):
        return TextFile(str(path), None, lambda note: _read_bytes(expand(path), path, form, note))
    with reported("read", path):
        status = path.stat()
    if stat.S_ISFIFO(status.st_mode):  # a shell's <(command)
        pieces = spooled(lambda: read_chunks(path, only_regular=False))
        return TextFile(str(path), None, lambda note: _read_bytes(_reported(pieces(), path), path, form, note))
    plain = suffix not in (".jsonl", ".csv")
    return TextFile(
        str(path),
        status.st_size if plain else None,
        lambda note: _read_bytes(_reported(read_chunks(path), path), path, form, note),
        path if plain and stat.S_ISREG(status.st_mode) else None,
    )


def inner_suffix(path: Path) -> str:
    """`.jsonl` of `stories.jsonl.gz`."""
    return (Path(path.stem) if is_compressed(path) else path).suffix.lower()


def spooled(read: Callable[[], Iterable[bytes]]) -> Callable[[], Iterator[bytes]]:
    """What can be read once, again and again: what is long waits in a temporary file."""
    kept: list[IO[bytes]] = []

    def pieces() -> Iterator[bytes]:
        if not kept:
            spool = tempfile.SpooledTemporaryFile(_KEPT_IN_MEMORY)  # noqa: SIM115 - as long as `pieces` lives
            weakref.finalize(pieces, spool.close)
            spool.writelines(read())
            kept.append(spool)
        kept[0].seek(0)
        while data := kept[0].read(CHUNK):
            yield data

    return pieces


def _reported(pieces: Iterable[bytes], path: Path) -> Iterator[bytes]:
    with reported("read", path):
        yield from pieces


def _read_bytes(pieces: Iterable[bytes], path: Path, form: Format, note: Note) -> Iterator[Stream]:
    name = str(path)
    match inner_suffix(path):
        case ".jsonl":
            yield from _read_json_lines(name, decode(pieces, name, "utf-8", note), form.text_key)
        case ".csv":
            yield from _read_csv(name, decode(pieces, name, form.encoding, note), form.text_key)
        case _:
            yield name, decode_utf8(pieces, name, form.encoding, note)


def _read_json_lines(name: str, pieces: Iterable[str], key: str) -> Iterator[Stream]:
    """One document a line, under a key of its JSON object; blank lines and empty texts are passed over."""
    for number, line in enumerate(_lines(name, pieces), start=1):
        where = f"{name}:{number}"
        if line.strip() and (data := _encoded(_under_key(line, key, where), where)):
            yield where, [data]


def _under_key(line: str, key: str, where: str) -> str:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"this line is not JSON: {error}", where=where) from error
    if isinstance(value, dict) and isinstance(text := value.get(key), str):
        return text
    keys = ", ".join(list(value)[:10]) if isinstance(value, dict) else ""
    raise UserError(
        f"this line is not a JSON object with a string under the key '{key}'",
        where=where,
        hint=f"its keys are: {keys}; choose one with --text-key (data.text_key)" if keys else None,
    )


def _encoded(text: str, where: str) -> bytes:
    """`text` in UTF-8, if it can hold it: JSON can spell what is no Unicode text."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the text holds half a surrogate pair at character {error.start:,}", where=where) from error


def _read_csv(name: str, pieces: Iterable[str], key: str) -> Iterator[Stream]:
    """One document a row, in the column that the first row calls `key`; empty ones are passed over."""
    csv.field_size_limit(_LONGEST_RECORD)
    rows = csv.reader(_lines(name, pieces, keep_ends=True), strict=True)
    column: int | None = None
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise UserError(f"this is not CSV: {error}", where=f"{name}:{rows.line_num}") from error
        if row is None:
            return
        where = f"{name}:{rows.line_num}"
        if not row:
            continue
        if column is None:
            column = _find_column(name, key, row)
        elif len(row) <= column:
            raise UserError(f"this row has no column '{key}': it has {len(row)} columns", where=where)
        elif row[column]:
            yield where, [row[column].encode()]


def _find_column(name: str, key: str, columns: list[str]) -> int:
    if key not in columns:
        raise UserError(
            f"{name} has no column '{key}'",
            hint=f"its columns are: {', '.join(columns[:10])[:200]}; choose one with --text-key (data.text_key)",
        )
    return columns.index(key)


def _read_parquet(path: Path, key: str) -> Iterator[Stream]:
    """One document a row, in the column `key`; empty ones and nulls are passed over."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")  # optional: only who has .parquet files needs it
        arrow: Any = importlib.import_module("pyarrow")
    except ImportError as error:
        raise UserError(
            f"reading {path} needs the package pyarrow", hint="pip install 'gpt-cli[data]', or: pip install pyarrow"
        ) from error
    try:
        with reported("read", path), path.open("rb") as stream:
            table = parquet.ParquetFile(stream, buffer_size=CHUNK, pre_buffer=False)
            _find_column(str(path), key, list(table.schema_arrow.names))
            kind = table.schema_arrow.field(key).type
            if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
                raise UserError(f"the column '{key}' of {path} holds {kind}, not text")
            row = 0
            for batch in table.iter_batches(_ROWS, columns=[key]):
                for text in batch.column(0):
                    row += 1
                    if value := text.as_py():
                        yield f"{path}:{row}", [_encoded(value, f"{path}:{row}")]
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a whole Parquet file: {str(error).splitlines()[0][:200]}") from error


def _lines(name: str, pieces: Iterable[str], *, keep_ends: bool = False) -> Iterator[str]:
    """The lines of a text, ended by line feeds alone."""
    end = "\n" if keep_ends else ""
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            yield line + end
        if len(rest) > _LONGEST_RECORD:
            raise UserError(
                f"{name} has a line of more than {format_size(_LONGEST_RECORD)}, the most that is read here"
            )
    if rest:
        yield rest
