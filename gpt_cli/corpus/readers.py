"""Stream the documents of one file: a text, or a key of JSON lines, CSV or Parquet."""

import json
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpt_cli.corpus.compression import expand, is_compressed
from gpt_cli.corpus.decoding import EncodingError, decode, decode_utf8
from gpt_cli.corpus.parquet import read_parquet
from gpt_cli.corpus.records import Stream, read_csv, read_json_lines
from gpt_cli.errors import Notify
from gpt_cli.files.safe_io import CHUNK, read_chunks, translate_os_errors

UTF8_SUFFIXES = (".jsonl", ".parquet")
_LONGEST_SHOWN = 1 << 16  # bytes at the beginning of a text in which a JSON object is looked for
_SPOOL_IN_MEMORY = 16 << 20  # bytes of standard input; more is spooled to a temporary file


@dataclass(frozen=True)
class ReaderOptions:
    """The encoding and text key with which files are read: `data.encoding` and `data.text_key`."""

    encoding: str = "utf-8"
    text_key: str = "text"
    lists: bool = False
    """True: a list under that key of a JSON line is read, too, as JSON text."""
    labels: bool = False
    """True: a string, integer or boolean under that key of a JSON line is read as JSON text, and integers in a column
    of a table as their digits."""


@dataclass(frozen=True)
class TextFile:
    """A text file that can be read repeatedly."""

    name: str
    size: int | None
    """Bytes of its text, where known before it is read."""
    read: Callable[[Notify], Iterator[Stream]]
    """Returns its documents in order, none empty; each is to be read to its end before the next one."""


def text_file(path: Path, options: ReaderOptions) -> TextFile:
    """The reader of `path`, by its suffix: .jsonl, .csv and .parquet hold documents, any other file is one text."""
    suffix = inner_suffix(path)
    if suffix == ".parquet":
        return TextFile(
            str(path), None, lambda note: read_parquet(path, options.text_key, note, numbers=options.labels)
        )
    if is_compressed(path):
        return TextFile(str(path), None, lambda note: _read_bytes(expand(path), path, options, note))
    with translate_os_errors("read", path):
        status = path.stat()
    if stat.S_ISFIFO(status.st_mode):  # a shell's <(command)
        pieces = rewindable(lambda: read_chunks(path, only_regular=False))
        return TextFile(
            str(path), None, lambda note: _read_bytes(_translate_errors(pieces(), path), path, options, note)
        )
    plain = suffix not in (".jsonl", ".csv")
    return TextFile(
        str(path),
        status.st_size if plain else None,
        lambda note: _read_bytes(_translate_errors(read_chunks(path), path), path, options, note),
    )


def inner_suffix(path: Path) -> str:
    """The suffix without that of a compression: `.jsonl` for `stories.jsonl.gz`, and for its other name, `.ndjson`."""
    suffix = (Path(path.stem) if is_compressed(path) else path).suffix.lower()
    return ".jsonl" if suffix == ".ndjson" else suffix


def is_table(path: Path) -> bool:
    """True for a file whose documents are its records: each has the text under a key."""
    return inner_suffix(path) in (".jsonl", ".csv", ".parquet")


def rewindable(read: Callable[[], Iterable[bytes]]) -> Callable[[], Iterator[bytes]]:
    """A function that reads a one-time stream from its start each time; the stream is spooled in a temporary file."""
    spools: list[IO[bytes]] = []

    def pieces() -> Iterator[bytes]:
        if not spools:
            spool = tempfile.SpooledTemporaryFile(_SPOOL_IN_MEMORY)  # noqa: SIM115 - as long as `pieces` lives
            weakref.finalize(pieces, spool.close)
            spool.writelines(read())
            spools.append(spool)
        spools[0].seek(0)
        while data := spools[0].read(CHUNK):
            yield data

    return pieces


def _translate_errors(pieces: Iterable[bytes], path: Path) -> Iterator[bytes]:
    with translate_os_errors("read", path):
        yield from pieces


def _decode_json(pieces: Iterable[bytes], name: str, note: Notify) -> Iterator[bytes]:
    try:
        yield from decode_utf8(pieces, name, "utf-8", note)
    except EncodingError as error:
        error.hint = "JSON lines are always UTF-8: write it anew, for instance with iconv"
        raise


def _read_bytes(pieces: Iterable[bytes], path: Path, options: ReaderOptions, note: Notify) -> Iterator[Stream]:
    name = str(path)
    match inner_suffix(path):
        case ".jsonl":
            lines = _decode_json(pieces, name, note)
            yield from read_json_lines(name, lines, options.text_key, lists=options.lists, labels=options.labels)
        case ".csv":
            yield from read_csv(name, decode(pieces, name, options.encoding, note), options.text_key)
        case ".json":  # of which `find_files` says so
            yield name, decode_utf8(pieces, name, options.encoding, note)
        case _:
            yield name, read_text(pieces, name, options.encoding, note)


def read_text(pieces: Iterable[bytes], name: str, encoding: str, note: Notify) -> Iterator[bytes]:
    """The text of `pieces` as UTF-8. `note` is called if it begins with a JSON object on a line of its own."""
    checked = False
    for data in decode_utf8(pieces, name, encoding, note):
        if not checked and _begins_with_record(data):
            note(f"{name} is read as plain text, marks and all;\nput JSON lines in a .jsonl file to read their keys")
        checked = True
        yield data


def _begins_with_record(data: bytes) -> bool:
    line = data[:_LONGEST_SHOWN].lstrip().partition(b"\n")[0]
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
