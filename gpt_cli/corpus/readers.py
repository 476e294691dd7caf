"""Read one file: the records of JSON, tables and notebooks, or plain text, by its suffix."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.decoding import decode_utf8
from gpt_cli.corpus.json_records import holds_records, read_json
from gpt_cli.corpus.parquet import read_parquet
from gpt_cli.corpus.records import (
    LONGEST_RECORD,
    Record,
    Stream,
    check_length,
    encode_text,
    iter_lines,
    peek,
    read_texts,
)
from gpt_cli.corpus.stored_file import StoredFile, inner_suffix, is_compressed
from gpt_cli.corpus.tables import read_table
from gpt_cli.errors import Notify, UserError
from gpt_cli.literals import DocumentUnit
from gpt_cli.terminal.words import format_size

Records = Callable[[Collection[str], Notify], Iterator[Record]]
READERS: Mapping[str, Callable[[StoredFile, Collection[str], str, Notify], Iterator[Record]]] = {
    ".jsonl": read_json,
    ".json": read_json,
    ".csv": read_table,
    ".tsv": read_table,
    ".parquet": read_parquet,
}
"""The readers of records, by suffix: of a file, the keys that may not be repeated, and the encoding of the text."""
RECORD_SUFFIXES = tuple(READERS)
UTF8_SUFFIXES = (".jsonl", ".parquet")
_LONGEST_SHOWN = 1 << 16  # bytes at the beginning of a text in which a JSON object is looked for
_LONGEST_NOTEBOOK = 2 * LONGEST_RECORD  # with its pictures


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
    folder: str = ""
    """Name of the folder that it is in, in an archive, too; empty for what is no file."""
    path: Path | None = None
    """The file that holds it, by which a change of it is noticed; None for a text without a file."""


def text_file(file: StoredFile, options: ReaderOptions, *, is_project: bool = False) -> TextFile:
    """The reader of `file`, by its suffix: JSON, tables and notebooks hold documents, any other file is plain text.

    `is_project`: the file is of a folder of other texts, where .json and .tsv are read as plain text.
    """
    name, folder = str(file.path), file.path.absolute().parent.name
    suffix = inner_suffix(file.path) if options.documents is None else ""
    if suffix == ".ipynb" and options.rules > 1:
        return TextFile(name, None, partial(_read_notebook, file), folder=folder)
    if suffix in READERS and (suffix not in (".json", ".tsv") or _has_records(file, suffix, options, is_project)):
        reader = READERS[suffix]
        return records_file(name, options, lambda keys, note: reader(file, keys, options.encoding, note))
    size = None if is_compressed(file.path) else file.size
    return plain_text(name, size, file.pieces, options, folder)


def plain_text(
    name: str, size: int | None, pieces: Callable[[], Iterable[bytes]], options: ReaderOptions, folder: str = ""
) -> TextFile:
    """Plain text, a document or one for each line or paragraph, as `options` has it."""

    def read(note: Notify) -> Iterator[Stream]:
        text = _note_record(name, decode_utf8(pieces(), name, options.encoding, note), note)
        match options.documents:
            case "lines":
                return ((f"{name}:{number}", [line.removesuffix(b"\r")]) for number, line in iter_lines(name, text))
            case "paragraphs":
                return _read_paragraphs(name, text)
        return iter([(name, text)])

    return TextFile(name, size, read, folder=folder)


def records_file(name: str, options: ReaderOptions, records: Records) -> TextFile:
    """A file of records, which holds a document under `options.text_key` of each."""
    key = options.text_key
    return TextFile(name, None, lambda note: read_texts(records([key], note), name, key, note), records)


def _has_records(file: StoredFile, suffix: str, options: ReaderOptions, is_project: bool) -> bool:
    """True if a .json or .tsv is not a text such as settings or notes."""
    if options.rules < 2 or is_project:
        return False
    encoding = "utf-8" if suffix == ".json" else options.encoding
    pieces = decode_utf8(file.pieces(), str(file.path), encoding, lambda _: None)
    try:
        if suffix == ".json":
            return holds_records(pieces)
        return b"\t" in peek(pieces, 1)[0].lstrip().partition(b"\n")[0]  # a first row of several columns
    except UserError:  # raised again where it is read
        return suffix == ".json" and holds_records(file.pieces())


def _read_notebook(file: StoredFile, note: Notify) -> Iterator[Stream]:
    """The cells of a Jupyter notebook as one document, with a blank line between them; what they output is left out."""
    name, data = str(file.path), bytearray()
    for piece in decode_utf8(file.pieces(), name, "utf-8", note):
        data += piece
        if len(data) > _LONGEST_NOTEBOOK:
            raise UserError(f"{name} is longer than {format_size(_LONGEST_NOTEBOOK)}, the limit of a notebook")
    try:
        texts = ["".join(cell["source"]) for cell in json.loads(data)["cells"]]
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
        check_length(size, "paragraph", name, start)
    if lines:
        yield f"{name}:{start}", [b"\n".join(lines) + b"\n\n"]


def _note_record(name: str, text: Iterator[bytes], note: Notify) -> Iterator[bytes]:
    """`text`. `note` is called if it begins with a JSON object on a line of its own."""
    if (first := next(text, None)) is None:
        return
    line = first[:_LONGEST_SHOWN].lstrip().partition(b"\n")[0]
    try:
        is_record = line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        is_record = False
    if is_record:
        note(f"{name} is read as plain text, marks and all;\nput JSON lines in a .jsonl file to read their keys")
    yield first
    yield from text
