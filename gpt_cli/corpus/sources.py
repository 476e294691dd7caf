"""Read the documents that a `data.source` names, unchanged.

Newlines stay what they are; only a byte order mark is dropped. What is not UTF-8 is refused with its place.
"""

import difflib
import glob
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt_cli.corpus import hub
from gpt_cli.corpus.decoding import decode_utf8
from gpt_cli.corpus.folders import by_parts, is_file, match_sorted, walk
from gpt_cli.corpus.readers import ReaderOptions, TextFile, inner_suffix, rewindable, text_file
from gpt_cli.corpus.records import Stream
from gpt_cli.corpus.registry import CORPORA, local_path
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.files import list_directory
from gpt_cli.files.safe_io import CHUNK, translate_os_errors

BUILTIN = "builtin:python-docs"
_NOT_TEXT = frozenset(
    [
        *(".7z", ".jar", ".rar", ".tar", ".tgz", ".whl", ".zip"),  # archives
        *(".bmp", ".gif", ".ico", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"),  # images
        *(".avi", ".flac", ".m4a", ".mkv", ".mov", ".mp3", ".mp4", ".ogg", ".wav", ".webm"),  # sound and film
        *(".doc", ".docx", ".odt", ".pdf", ".ppt", ".pptx", ".xls", ".xlsx"),  # documents
        *(".eot", ".otf", ".ttf", ".woff", ".woff2"),  # fonts
        *(".class", ".dll", ".dylib", ".exe", ".o", ".pyc", ".so", ".wasm"),  # programs
        *(".bin", ".db", ".h5", ".npy", ".npz", ".pt", ".pth", ".safetensors", ".sqlite"),  # data
    ]
)


_MADE = {  # how to know what `gpt` makes
    "run": {"run.json", "config.yaml"},
    "checkpoint": {"SHA256SUMS", "state.json", "config.yaml"},
    "token store": {"tokens.json", "tokenizer.json"},
}


@dataclass(frozen=True)
class Document:
    """One text that stands by itself: a file, or a line of a .jsonl file, or a row of a table."""

    name: str
    """Its source, for messages."""
    text: str


def read_documents(
    source: str | Sequence[str], *, note: Notify, options: ReaderOptions | None = None
) -> Iterator[Document]:
    """The documents of a source, or of each of several, in order and each as a whole; no document is empty.

    `note` is told what was left out. Raises as `find_files` does, and UserError for a source that is empty, binary
    or not in its encoding.
    """
    for one in [source] if isinstance(source, str) else source:
        for file in find_files(one, options or ReaderOptions(), note):
            for name, pieces in file.read(note):
                yield Document(name, b"".join(pieces).decode())


def find_files(source: str, options: ReaderOptions, note: Notify) -> list[TextFile]:
    """The files that a source names, in order.

    A source is `-` (standard input), `builtin:python-docs`, `corpus:NAME` (downloaded before), `hf:OWNER/NAME` (from
    the network), a text file (also .gz, .bz2, .xz, .zst; .jsonl, .csv and .parquet hold documents), a folder (all its
    text files, sorted), or a glob. `note` is told what was left out.

    Raises RequestError for a source that does not exist, and UserError for a folder without text.
    """
    scheme, _, name = source.partition(":")
    if source == "-":
        if sys.stdin is None:
            raise RequestError("standard input is closed")
        pieces = rewindable(_standard_input)
        return [TextFile("standard input", None, lambda note: _one_text(pieces(), options, note))]
    if source == BUILTIN:
        data = _python_docs().encode()
        return [TextFile(BUILTIN, len(data), lambda note: iter([(BUILTIN, [data])]))]
    if scheme == "corpus":
        return [text_file(local_path(name), options)]
    if scheme == "hf":
        return [text_file(path, options) for path in hub.download_dataset(name, note)]
    if scheme == "builtin":
        raise RequestError(f"there is no built-in corpus '{name}'", hint=f"the built-in corpus is {BUILTIN}")
    paths = _find(find_path(source), note)
    _tell_of_raw_tables(paths, note)
    return [text_file(path, options) for path in paths]


def _tell_of_raw_tables(paths: list[Path], note: Notify) -> None:
    """Note that what looks like a table or like documents is read as plain text."""
    raw = [path for path in paths if inner_suffix(path) in (".tsv", ".json")]
    if raw and len(raw) == len(paths):  # among others they are part of a project
        note(f"{raw[0]} is read as plain text, marks and all;\ndocuments are read from .jsonl, .csv and .parquet")


def _standard_input() -> Iterator[bytes]:
    return iter(lambda: sys.stdin.buffer.read(CHUNK), b"")


def _one_text(pieces: Iterator[bytes], options: ReaderOptions, note: Notify) -> Iterator[Stream]:
    yield "standard input", decode_utf8(pieces, "standard input", options.encoding, note)


def find_path(source: str) -> Path:
    """The path that a source names, with a leading `~` expanded as a shell would: in a config no shell does."""
    return Path(os.path.expanduser(source))


def _python_docs() -> str:
    """The language reference that comes with every Python: about 465,000 characters of English."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise UserError(
            f"this Python was installed without its documentation topics, so there is no {BUILTIN}",
            hint="give a text file of your own, or: gpt data get tiny-shakespeare",
        ) from error
    return "\n".join(topics[name] for name in sorted(topics))


def _find(path: Path, note: Notify) -> list[Path]:
    """The files that a path, a folder or a glob stands for."""
    with translate_os_errors("read", path):
        if path.is_dir():
            return _files_in(path, note)
        if path.exists():
            return [path]
        if glob.has_magic(str(path)):
            if files := [match for match in map(Path, match_sorted(str(path))) if match.is_file()]:
                return [file for file in files if file.stat().st_size] or files  # as in a folder
            raise RequestError(f"no file matches {path}")
    if (hint := _elsewhere(path)) is not None:
        raise RequestError(f"{_as_given(path)} does not exist", hint=hint)
    alike = difflib.get_close_matches(path.name, list_directory(path.parent) if path.parent.is_dir() else [], n=1)
    nearest = f"did you mean {path.parent / alike[0]}?" if alike else None
    if nearest is None and len(str(path).split()) > 1:
        nearest = "give a file; a text itself is read from standard input: echo TEXT | gpt ... -"
    raise RequestError(f"{_as_given(path)} does not exist", hint=nearest)


def _as_given(path: Path) -> str:
    """An address with its two slashes, of which a path has one."""
    return re.sub(r"^(\w+):/+(?=.)", r"\1://", str(path))


def _elsewhere(path: Path) -> str | None:
    """A hint for what is no path, but an address or the name of a known text."""
    name = str(path)
    if match := re.match(r"(https?):/+(.+)", name):
        file = path.name or "text"
        return f"nothing is downloaded unasked: curl -Lo {file} {match[1]}://{match[2]}, then give {file}"
    if f"builtin:{name}" == BUILTIN:
        return f"did you mean {BUILTIN}?"
    if name in {corpus.name for corpus in CORPORA}:
        return f"it is a known text: gpt data get {name}, then give corpus:{name}"
    return None


def _files_in(folder: Path, note: Notify) -> list[Path]:
    """The text files under `folder`, sorted; without hidden, empty and evidently binary ones, and what `gpt` made."""
    files: list[str] = []
    skipped: list[Path] = []
    left_out: dict[str, list[Path]] = {}
    for place, entries in walk(str(folder)):
        if made := _own_artifact([entry.name for entry in entries]):
            if place == str(folder):
                hint = "use it alone, as data.source" if made == "token store" else "give the text that it is of"
                raise RequestError(f"{folder} is a {made}, not text", hint=hint)
            left_out.setdefault(made, []).append(Path(place))
            entries.clear()
        for entry in entries:
            if is_file(entry) and entry.stat().st_size > 0:
                if inner_suffix(Path(entry.name)) in _NOT_TEXT:
                    skipped.append(Path(entry.path))
                else:
                    files.append(entry.path)
    if not files:
        raise UserError(f"{folder} has no text files")
    for made, places in sorted(left_out.items()):
        note(f"left out {len(places):,} {made}{'s' if len(places) > 1 else ''} in {folder}, for instance {min(places)}")
    if skipped:
        note(f"skipped {len(skipped):,} binary files in {folder}, for instance {min(skipped)}")
    return [Path(path) for path in sorted(files, key=by_parts)]


def _own_artifact(names: Iterable[str]) -> str | None:
    """The kind of a directory that `gpt` made, by the names in it: never read as text."""
    return next((made for made, marks in _MADE.items() if marks <= set(names)), None)
