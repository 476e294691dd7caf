"""Read one file: the records of JSON, tables and notebooks, or plain text, by its suffix."""

import json
import stat
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Self

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.compression import expand, is_compressed
from gpt_cli.corpus.decoding import EncodingError, decode, decode_utf8
from gpt_cli.corpus.parquet import read_parquet
from gpt_cli.corpus.records import (
    LONGEST_RECORD,
    Record,
    Stream,
    check_structure,
    encode_text,
    iter_lines,
    read_json,
    read_texts,
)
from gpt_cli.corpus.tables import read_rows
from gpt_cli.errors import Notify, UserError
from gpt_cli.files.durable import CHUNK, read_chunks
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.literals import DocumentUnit
from gpt_cli.terminal.words import format_size

RECORD_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
UTF8_SUFFIXES = (".jsonl", ".parquet")
_LONGEST_SHOWN = 1 << 16  # bytes at the beginning of a text in which a JSON object is looked for
_SPOOL_IN_MEMORY = 16 << 20  # bytes of standard input; more is spooled to a temporary file
_LONGEST_NOTEBOOK = 64 << 20  # bytes, pictures included

Records = Callable[[Collection[str], Notify], Iterator[Record]]


@dataclass(frozen=True)
class ReaderOptions:
    """The keys of `data` that decide how files are read; see there."""

    encoding: str = "utf-8"
    text_key: str = "text"
    documents: DocumentUnit | None = None
    rules: int = 2

    @classmethod
    def of(cls, data: DataConfig) -> Self:
        """Return the options of a config."""
        documents = data.documents if data.format in ("text", "labelled") else None
        return cls(data.encoding, data.text_key, documents, data.rules)


@dataclass(frozen=True)
class TextFile:
    """A file that can be read repeatedly."""

    name: str
    size: int | None
    """Bytes of its text, where known before it is read."""
    read: Callable[[Notify], Iterator[Stream]]
    """Returns its documents in order, none empty; each is to be read to its end before the next one."""
    records: Records | None = None
    """Returns the records of a file of records, in which these keys occur once each; None for plain text."""
    path: Path | None = None
    """The file that holds it, by which a change of it is noticed; None for a text without a file."""


def text_file(path: Path, options: ReaderOptions, *, is_project: bool = False) -> TextFile:
    """The reader of `path`, by its suffix: JSON, tables and notebooks hold documents, any other file is plain text.

    `is_project`: the file is of a folder of other texts, where .json and .tsv are read as plain text.
    """
    suffix = inner_suffix(path)
    if options.documents is None and suffix == ".parquet":
        return records_file(str(path), options, lambda keys, note: read_parquet(path, keys))
    with translate_os_errors("read", path):
        status = path.stat()
    size: int | None = status.st_size
    pieces: Callable[[], Iterable[bytes]] = partial(_translate_errors, path)
    if is_compressed(path):
        pieces, size = partial(expand, path), None
    elif stat.S_ISFIFO(status.st_mode):  # a shell's <(command)
        read_again = rewindable(lambda: read_chunks(path, only_regular=False))
        pieces, size = (lambda: read_again()), None
    match suffix if options.documents is None else "":
        case ".jsonl":
            return records_file(str(path), options, partial(_read_json, str(path), pieces))
        case ".json" if options.rules > 1 and not is_project and _holds_records(pieces()):
            return records_file(str(path), options, partial(_read_json, str(path), pieces))
        case ".csv":
            return records_file(str(path), options, partial(_read_table, path, pieces, options))
        case ".tsv" if options.rules > 1 and not is_project and _has_columns(pieces()):
            return records_file(str(path), options, partial(_read_table, path, pieces, options))
        case ".ipynb" if options.rules > 1:
            return TextFile(str(path), None, partial(_read_notebook, str(path), pieces))
    return plain_text(str(path), size, pieces, options)


def plain_text(name: str, size: int | None, pieces: Callable[[], Iterable[bytes]], options: ReaderOptions) -> TextFile:
    """Plain text, a document or one for each line or paragraph, as `options` has it."""

    def read(note: Notify) -> Iterator[Stream]:
        text = _read_text(pieces(), name, options.encoding, note)
        match options.documents:
            case "lines":
                for number, line in iter_lines(name, text):
                    yield f"{name}:{number}", [line.removesuffix(b"\r")]
            case "paragraphs":
                yield from _read_paragraphs(name, text)
            case _:
                yield name, text

    return TextFile(name, size, read)


def records_file(name: str, options: ReaderOptions, records: Records) -> TextFile:
    """A file of records, which holds a document under `options.text_key` of each."""
    key = options.text_key
    return TextFile(name, None, lambda note: read_texts(records([key], note), name, key, note), records)


def inner_suffix(path: Path) -> str:
    """The suffix without that of a compression: `.jsonl` for `stories.jsonl.gz`, and for its other name, `.ndjson`."""
    suffix = (Path(path.stem) if is_compressed(path) else path).suffix.lower()
    return ".jsonl" if suffix == ".ndjson" else suffix


def _has_columns(pieces: Iterable[bytes]) -> bool:
    """True for a table whose first row has several columns, separated by tabs."""
    return b"\t" in next(iter(pieces), b"").lstrip().partition(b"\n")[0]


def _holds_records(pieces: Iterable[bytes]) -> bool:
    """True for JSON that is a list, or objects that follow each other; one object is a text, such as settings."""
    data = bytearray()
    for piece in pieces:
        data += piece
        head = data.decode(errors="replace").removeprefix("\ufeff").lstrip()
        if not head.startswith("{"):
            return head.startswith("[")
        with suppress(ValueError, RecursionError):
            _, end = json.JSONDecoder().raw_decode(head)
            return head[end:].lstrip().startswith("{")
        if len(data) > LONGEST_RECORD:
            break
    return False


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


def _translate_errors(path: Path) -> Iterator[bytes]:
    with translate_os_errors("read", path):
        yield from read_chunks(path)


def _read_json(
    name: str, pieces: Callable[[], Iterable[bytes]], keys: Collection[str], note: Notify
) -> Iterator[Record]:
    try:
        yield from read_json(name, decode_utf8(pieces(), name, "utf-8", note), keys, note)
    except EncodingError as error:
        error.hint = "JSON is always UTF-8: write it anew, for instance with iconv"
        raise


def _read_table(
    path: Path, pieces: Callable[[], Iterable[bytes]], options: ReaderOptions, keys: Collection[str], note: Notify
) -> Iterator[Record]:
    text = decode(pieces(), str(path), options.encoding, note)
    return read_rows(str(path), text, keys, note, is_tsv=inner_suffix(path) == ".tsv")


def _read_notebook(name: str, pieces: Callable[[], Iterable[bytes]], note: Notify) -> Iterator[Stream]:
    """The cells of a Jupyter notebook as one document, with a blank line between them; what they output is left out."""
    data = bytearray()
    for piece in decode_utf8(pieces(), name, "utf-8", note):
        data += piece
        if len(data) > _LONGEST_NOTEBOOK:
            raise UserError(f"{name} is longer than {format_size(_LONGEST_NOTEBOOK)}, the most that is read here")
    check_structure(data.decode(), name)
    try:
        notebook = json.loads(data)
        texts = ["".join(cell["source"]) for cell in notebook["cells"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{name} is no Jupyter notebook: it has no list of cells with a source") from error
    if text := "\n\n".join(text.strip("\n") for text in texts if text.strip()):
        yield name, [encode_text(f"{text}\n", name)]


def _read_paragraphs(name: str, text: Iterable[bytes]) -> Iterator[Stream]:
    """Each paragraph with a blank line at its end, so that a vocabulary without an end of text can tell them apart."""
    start, lines, size = 0, list[bytes](), 0
    for number, line in iter_lines(name, text):
        if lines and number > start + len(lines):
            yield f"{name}:{start}", [b"\n".join(lines) + b"\n\n"]
            lines, size = [], 0
        if not lines:
            start = number
        lines.append(line.removesuffix(b"\r"))
        size += len(line) + 1
        if size > LONGEST_RECORD:
            limit = format_size(LONGEST_RECORD)
            raise UserError(
                f"this paragraph is longer than {limit}, the most that is read here", where=f"{name}:{start}"
            )
    if lines:
        yield f"{name}:{start}", [b"\n".join(lines) + b"\n\n"]


def _read_text(pieces: Iterable[bytes], name: str, encoding: str, note: Notify) -> Iterator[bytes]:
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
