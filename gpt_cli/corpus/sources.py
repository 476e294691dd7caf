"""Read the documents that a `data.source` names, unchanged but for a byte order mark, which is dropped.

Newlines are kept as they are. Text that is not in its encoding is refused with its location.
"""

import glob
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader
from pathlib import Path
from shlex import quote
from typing import TypeVar, cast

from gpt_cli.corpus import hub
from gpt_cli.corpus.builtin import python_docs, python_keywords
from gpt_cli.corpus.decoding import BinaryError
from gpt_cli.corpus.folders import by_parts, is_file, match_sorted, walk
from gpt_cli.corpus.readers import (
    RECORD_SUFFIXES,
    ReaderOptions,
    TextFile,
    inner_suffix,
    plain_text,
    records_file,
    rewindable,
    text_file,
)
from gpt_cli.corpus.records import Record, Stream
from gpt_cli.corpus.registry import CORPORA, local_path
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.files.durable import CHUNK
from gpt_cli.files.kinds import TEXTS, kind_of, kind_of_names, refuse_unless
from gpt_cli.files.locations import similar_paths
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.terminal.words import plural

_T = TypeVar("_T")
BUILTIN = "builtin:python-docs"
KEYWORDS = "builtin:python-keywords"
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


@dataclass(frozen=True)
class Document:
    """One text: a file, or a record of one."""

    name: str
    """Its source, for messages."""
    text: str


def read_documents(
    source: str | Sequence[str], *, note: Notify, options: ReaderOptions | None = None
) -> Iterator[Document]:
    """The documents of one or several sources, in order; none is empty.

    `note` is called for files that are skipped. Raises as `find_files` does, and UserError for a source that is empty,
    binary or not in its encoding.
    """
    for entry in [source] if isinstance(source, str) else source:
        for file in find_files(entry, options or ReaderOptions(), note):
            for name, pieces in file.read(note):
                yield Document(name, b"".join(pieces).decode())


def find_files(source: str, options: ReaderOptions, note: Notify) -> list[TextFile]:
    """The files that a source names, in order.

    A source is `-` (standard input), `builtin:NAME`, `corpus:NAME` (downloaded before), `hf:OWNER/NAME` (from the
    network), a file (also .gz, .bz2, .xz, .zst; see `text_file`), a folder (all its text files, sorted), or a glob.
    `note` is called for files that are skipped.

    Raises RequestError for a source that does not exist, and UserError for a folder without text.
    """
    scheme, _, name = source.partition(":")
    if not source:
        raise RequestError("the name of a text is empty, which names nothing")
    if source == "-":
        pieces = rewindable(standard_input)
        return [plain_text("standard input", None, pieces, options)]
    if source == KEYWORDS:
        return [records_file(KEYWORDS, options, _keyword_records)]
    if source == BUILTIN:
        data = python_docs().encode()
        return [TextFile(BUILTIN, len(data), lambda note: iter([(BUILTIN, [data])]))]
    if scheme == "corpus":
        return [replace(text_file(path := local_path(name), options), path=path)]
    if scheme == "hf":
        return [replace(text_file(path, options), path=path) for path in hub.download_dataset(name, note)]
    if scheme == "builtin":
        raise RequestError(f"there is no built-in corpus '{name}'", hint=f"there are {BUILTIN} and {KEYWORDS}")
    path = find_path(source)
    paths = _expand_path(path, note)
    # Beside others they belong to a project, and one of them may be a list of anything.
    is_project = any(inner_suffix(one) not in RECORD_SUFFIXES for one in paths)
    files = [replace(text_file(one, options, is_project=is_project), path=one) for one in paths]
    if not is_project and options.documents is None and (plain := [one for one in files if one.records is None]):
        note(f"{plain[0].name} is read as plain text, marks and all")
    return [replace(file, read=partial(_read_of_folder, path, file)) for file in files] if path.is_dir() else files


def _keyword_records(_keys: Collection[str], _note: Notify) -> Iterator[Record]:
    for number, (text, label) in enumerate(python_keywords(), 1):
        yield Record(f"{KEYWORDS}:{number}", {"text": text, "label": label})


def _read_of_folder(folder: Path, file: TextFile, note: Notify) -> Iterator[Stream]:
    """The documents of one of the files of `folder`, which was named in place of them."""
    for name, pieces in _hint_at_texts(folder, file.read(note)):
        yield name, _hint_at_texts(folder, pieces)


def _hint_at_texts(folder: Path, items: Iterable[_T]) -> Iterator[_T]:
    try:
        yield from items
    except BinaryError as error:
        error.hint = f"of a folder, name the texts alone, such as {quote(str(folder / '*.txt'))}"
        raise


def standard_input() -> Iterator[bytes]:
    """Standard input, in pieces. Raises RequestError if it is closed."""
    if sys.stdin is None:
        raise RequestError("standard input is closed")
    read = cast(BufferedReader, sys.stdin.buffer).read1  # `read` would ask a terminal again after its end
    return iter(partial(read, CHUNK), b"")


def refuse_standard_input(sources: Iterable[str]) -> None:
    """Raise RequestError for a request of several runs if one of their texts is standard input."""
    if "-" in sources:
        raise RequestError(
            "each run reads its text, and standard input is read once", hint="put it in a file, and name that"
        )


def find_path(source: str) -> Path:
    """The path of a source, with a leading `~` expanded: no shell does that in a config."""
    return Path(os.path.expanduser(source))


def refuse_overwriting(output: Path, sources: Iterable[str], option: str) -> None:
    """Raise RequestError if a file `output`, which was given with `option`, would change a text of `sources`."""
    place = os.path.realpath(output)
    for source in sources:
        path = str(find_path(source))
        if os.path.isdir(path):  # to which a file could also be added
            is_inside = place.startswith(os.path.join(os.path.realpath(path), ""))
            is_text = is_inside and kind_of(output.parent) in (*TEXTS, "token store")
        elif os.path.exists(path):
            is_text = place == os.path.realpath(path)
        else:
            is_text = glob.has_magic(path) and place in map(os.path.realpath, match_sorted(path))
        if is_text:
            raise RequestError(
                f"{output} belongs to the text {source}, which this would change",
                hint=f"choose another file with {option}",
            )


def _expand_path(path: Path, note: Notify) -> list[Path]:
    """The files of a path, a folder or a glob. Raises RequestError, with a hint, if there are none."""
    refuse_unless(TEXTS, path, "text")
    with translate_os_errors("read", path):
        if path.is_dir():
            return _files_in(path, note)
        if path.exists():
            return [path]
        if (hint := _hint_if_no_path(path)) is not None:
            raise RequestError(f"{_restore_url(path)} does not exist", hint=hint)
        if glob.has_magic(str(path)):
            if files := [match for match in map(Path, match_sorted(str(path))) if match.is_file()]:
                return [file for file in files if file.stat().st_size] or files  # as in a folder
            raise RequestError(f"no file matches {path}")
        if path.is_symlink():
            target = os.readlink(path)
            where = "itself" if target == path.name else f"{target}, where there is no file"
            raise RequestError(f"{path} is a link to {where}")
    raise RequestError(f"{_restore_url(path)} does not exist", choices=similar_paths(path))


def _restore_url(path: Path) -> str:
    """The path as it was typed: a URL gets back the second slash that `Path` drops."""
    return re.sub(r"^(\w+):/+(?=.)", r"\1://", str(path))


def _hint_if_no_path(path: Path) -> str | None:
    """A hint if `path` is a URL or the name of a known corpus, else None."""
    name = str(path)
    if match := re.match(r"(https?):/+(.+)", name):
        file, address = quote(path.name.partition("?")[0] or "text"), quote(f"{match[1]}://{match[2]}")
        return f"nothing is downloaded unasked: curl -Lo {file} {address}, then give {file}"
    if f"builtin:{name}" in (BUILTIN, KEYWORDS):
        return f"did you mean builtin:{name}?"
    if name in {corpus.name for corpus in CORPORA}:
        return f"it is a known text: gpt data get {name}, then give corpus:{name}"
    return None


def _files_in(folder: Path, note: Notify) -> list[Path]:
    """The text files under `folder`, sorted; not hidden, empty and binary ones, nor runs, token stores and models."""
    files: list[str] = []
    skipped: list[Path] = []
    others: dict[str, list[Path]] = {}
    for path, entries in walk(str(folder)):
        if (kind := kind_of_names([entry.name for entry in entries])) is not None:
            others.setdefault(kind, []).append(Path(path))
            entries.clear()
        for entry in entries:
            if is_file(entry) and entry.stat().st_size > 0:
                if inner_suffix(Path(entry.name)) in _NOT_TEXT:
                    skipped.append(Path(entry.path))
                else:
                    files.append(entry.path)
    if not files:
        refuse_unless(TEXTS - {"runs folder"}, folder, "text")
        hidden = [str(folder / name) for name in sorted(os.listdir(folder)) if name.startswith(".")]
        raise UserError(f"{folder} has no text files", choices=[*map(str, others.get("token store", [])), *hidden][:1])
    for name, paths in sorted(others.items()):
        if len(paths) == 1:
            note(f"left out the {name} {paths[0]}")
        else:
            note(f"left out {len(paths):,} {name}s in {folder}, for instance {min(paths)}")
    if skipped:
        files_skipped = plural(len(skipped), "binary file")
        note(f"skipped {files_skipped} in {folder}, for instance {min(skipped)}")
    return [Path(path) for path in sorted(files, key=by_parts)]
