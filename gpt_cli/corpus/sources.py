"""What a `data.source` names, read document by document, exactly as it was written.

Newlines stay what they are; only a byte order mark is dropped. What is not UTF-8 is refused with its place.
"""

import codecs
import difflib
import glob
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt_cli.corpus.compression import is_compressed, read_compressed
from gpt_cli.corpus.registry import installed_corpus
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import list_directory, read_file
from gpt_cli.files.disk import reported

Note = Callable[[str], None]

BUILTIN = "builtin:python-docs"
_NOT_TEXT = frozenset(
    [
        *(".7z", ".bz2", ".jar", ".rar", ".tar", ".tgz", ".whl", ".zip"),  # archives
        *(".bmp", ".gif", ".ico", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"),  # images
        *(".avi", ".flac", ".m4a", ".mkv", ".mov", ".mp3", ".mp4", ".ogg", ".wav", ".webm"),  # sound and film
        *(".doc", ".docx", ".odt", ".pdf", ".ppt", ".pptx", ".xls", ".xlsx"),  # documents
        *(".eot", ".otf", ".ttf", ".woff", ".woff2"),  # fonts
        *(".class", ".dll", ".dylib", ".exe", ".o", ".pyc", ".so", ".wasm"),  # programs
        *(".bin", ".db", ".h5", ".npy", ".npz", ".parquet", ".pt", ".pth", ".safetensors", ".sqlite"),  # data
    ]
)


@dataclass(frozen=True)
class Document:
    """One text that stands by itself: a file, or a line of a .jsonl file."""

    name: str
    """Where it comes from, for messages."""
    text: str


def read_documents(source: str | Sequence[str], *, note: Note) -> Iterator[Document]:
    """The documents of a source, or of each of several, in order; no document is empty.

    A source is `-` (standard input), `builtin:python-docs`, `corpus:NAME` (downloaded before), a text file
    (also .gz, .xz, .zst; .jsonl with the key `text`), a folder (all its text files, sorted), or a glob.
    `note` is told what was left out.

    Raises RequestError for a source that does not exist, UserError for one that is empty, binary or no UTF-8.
    """
    for one in [source] if isinstance(source, str) else source:
        yield from _read_source(one, note)


def find_path(source: str) -> Path:
    """The path that a source names, with a leading `~` expanded as a shell would: in a config no shell does."""
    return Path(os.path.expanduser(source))


def _read_source(source: str, note: Note) -> Iterator[Document]:
    scheme, _, name = source.partition(":")
    if source == "-":
        if sys.stdin is None:
            raise RequestError("standard input is closed")
        yield Document("standard input", _decode(sys.stdin.buffer.read(), "standard input", note))
    elif source == BUILTIN:
        yield _python_docs()
    elif scheme == "corpus":
        yield from _read_path(installed_corpus(name), note)
    elif scheme == "builtin":
        raise RequestError(f"there is no built-in corpus '{name}'", hint=f"the built-in corpus is {BUILTIN}")
    else:
        for path in _find(find_path(source), note):
            yield from _read_path(path, note)


def _python_docs() -> Document:
    """The language reference that comes with every Python: about 465,000 characters of English."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise UserError(
            f"this Python was installed without its documentation topics, so there is no {BUILTIN}",
            hint="give a text file of your own, or: gpt data get tiny-shakespeare",
        ) from error
    return Document(BUILTIN, "\n".join(topics[name] for name in sorted(topics)))


def _find(path: Path, note: Note) -> list[Path]:
    """The files that a path, a folder or a glob stands for."""
    with reported("read", path):
        if path.is_dir():
            return _files_in(path, note)
        if path.exists():
            return [path]
        found = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
        if glob.has_magic(str(path)):
            if files := [match for match in found if match.is_file()]:
                return files
            raise RequestError(f"no file matches {path}")
    alike = difflib.get_close_matches(path.name, list_directory(path.parent) if path.parent.is_dir() else [], n=1)
    raise RequestError(f"{path} does not exist", hint=f"did you mean {path.parent / alike[0]}?" if alike else None)


def _files_in(folder: Path, note: Note) -> list[Path]:
    """The text files under `folder`, sorted; without hidden, empty and evidently binary ones."""
    if (folder / "tokens.json").exists():
        raise RequestError(f"{folder} is a token store, not text", hint="use it alone, as data.source")
    files: list[Path] = []
    skipped: list[Path] = []
    for directory, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(directory, name) for name in names if not name.startswith(".")):
            if path.is_file() and path.stat().st_size > 0:
                (skipped if _inner_suffix(path) in _NOT_TEXT else files).append(path)
    if not files:
        raise UserError(f"{folder} has no text files")
    if skipped:
        note(f"skipped {len(skipped):,} binary files in {folder}, for instance {min(skipped)}")
    return sorted(files)


def _raise(error: OSError) -> None:
    raise error


def _read_path(path: Path, note: Note) -> Iterator[Document]:
    if is_compressed(path):
        data = read_compressed(path)
    elif path.is_fifo():  # a shell's <(command)
        data = path.read_bytes()
    else:
        data = read_file(path)
    text = _decode(data, str(path), note)
    if _inner_suffix(path) == ".jsonl":
        yield from _read_lines(path, text)
    else:
        yield Document(str(path), text)


def _inner_suffix(path: Path) -> str:
    """`.jsonl` of `stories.jsonl.gz`."""
    return (Path(path.stem) if is_compressed(path) else path).suffix.lower()


def _decode(data: bytes, name: str, note: Note) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{name} is UTF-16, not UTF-8", hint="convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW")
    if (offset := data.find(b"\0")) >= 0:
        raise UserError(f"{name} is binary, not text: there is a zero byte at offset {offset:,}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start:,}",
            where=f"{name}:{line}",
            hint="if it is Latin-1, convert it: iconv -f LATIN1 -t UTF-8 OLD > NEW",
        ) from error
    if text.startswith("\ufeff"):
        note(f"{name} starts with a byte order mark, which was dropped")
        text = text[1:]
    if not text:
        raise UserError(f"{name} is empty")
    return text


def _read_lines(path: Path, text: str) -> Iterator[Document]:
    """One document a line, under the key `text` of its JSON object; blank lines are passed over."""
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{path}:{number}"
        if line.strip() and (document := _text_of(line, where)):
            yield Document(where, document)


def _text_of(line: str, where: str) -> str:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"this line is not JSON: {error}", where=where) from error
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise UserError("this line is not a JSON object with a string under the key 'text'", where=where)
    text: str = value["text"]
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the text holds half a surrogate pair at character {error.start:,}", where=where) from error
    return text
