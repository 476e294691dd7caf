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
from typing import cast

from gpt_cli.corpus import hub
from gpt_cli.corpus.archive_folders import files_in_archive, is_archive
from gpt_cli.corpus.builtin import python_docs, python_keywords
from gpt_cli.corpus.folders import files_in_folder, match_sorted
from gpt_cli.corpus.readers import RECORD_SUFFIXES, ReaderOptions, TextFile, plain_text, records_file, text_file
from gpt_cli.corpus.records import Record
from gpt_cli.corpus.registry import CORPORA, local_path
from gpt_cli.corpus.stored_file import StoredFile, inner_suffix, rewindable
from gpt_cli.errors import Notify, RequestError
from gpt_cli.files.durable import CHUNK
from gpt_cli.files.kinds import TEXTS, kind_of, refuse_unless
from gpt_cli.files.locations import similar_paths
from gpt_cli.files.os_errors import translate_os_errors

BUILTIN = "builtin:python-docs"
KEYWORDS = "builtin:python-keywords"


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
    network), a file (also .gz, .bz2, .xz, .zst; see `text_file`), a folder (all its text files, sorted), a .zip or .tar
    of one, or a glob. `note` is called for files that are skipped.

    Raises RequestError for a source that does not exist, and UserError for a folder without text.
    """
    scheme, _, name = source.partition(":")
    if not source:
        raise RequestError("the name of a text must not be empty")
    if source == "-":
        return [plain_text("standard input", None, rewindable(standard_input), options)]
    if source == KEYWORDS:
        return [records_file(KEYWORDS, options, _keyword_records)]
    if source == BUILTIN:
        data = python_docs().encode()
        return [TextFile(BUILTIN, len(data), lambda note: iter([(BUILTIN, [data])]))]
    if scheme == "corpus":
        return [_text_file(local_path(name), options)]
    if scheme == "hf":
        return [_text_file(path, options) for path in hub.download_dataset(name, note)]
    if scheme == "builtin":
        raise RequestError(f"there is no built-in corpus '{name}'", choices=[BUILTIN, KEYWORDS])
    files = [(path, file) for path in _expand_path(find_path(source), note) for file in _stored_files(path, note)]
    # Beside others they belong to a project, and one of them may be a list of anything.
    is_project = any(inner_suffix(file.path) not in RECORD_SUFFIXES for _, file in files)
    texts = [replace(text_file(file, options, is_project=is_project), path=path) for path, file in files]
    if not is_project and options.documents is None and (plain := [text for text in texts if text.records is None]):
        note(f"{plain[0].name} is read as plain text, marks and all")
    return texts


def _text_file(path: Path, options: ReaderOptions) -> TextFile:
    return replace(text_file(StoredFile.at(path), options), path=path)


def standard_input() -> Iterator[bytes]:
    """Standard input, in pieces. Raises RequestError if it is closed."""
    if sys.stdin is None:
        raise RequestError("standard input is closed")
    read = cast(BufferedReader, sys.stdin.buffer).read1  # `read` would ask a terminal again after its end
    return iter(partial(read, CHUNK), b"")


def refuse_standard_input(sources: Iterable[str]) -> None:
    """Raise RequestError for a request of several runs if one of their texts is standard input."""
    if "-" in sources:
        raise RequestError("each run reads its text, and standard input can be read only once")


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
            raise RequestError(f"{option} {output} would change the text {source}")


def _keyword_records(_keys: Collection[str], _note: Notify) -> Iterator[Record]:
    for number, (text, label) in enumerate(python_keywords(), 1):
        yield Record(f"{KEYWORDS}:{number}", {"text": text, "label": label})


def _expand_path(path: Path, note: Notify) -> list[Path]:
    """The files of a path, a folder or a glob. Raises RequestError if there are none."""
    refuse_unless(TEXTS, path, "text")
    with translate_os_errors("read", path):
        if path.is_dir():
            return files_in_folder(path, note)
        if path.exists():
            return [path]
        if glob.has_magic(str(path)) and not re.match(r"\w+:/", str(path)):
            if files := [match for match in map(Path, match_sorted(str(path))) if match.is_file()]:
                return [file for file in files if file.stat().st_size] or files  # as in a folder
            raise RequestError(f"no file matches {path}")
        if path.is_symlink():
            target = os.readlink(path)
            where = "itself" if target == path.name else f"{target}, where there is no file"
            raise RequestError(f"{path} is a link to {where}")
    raise _missing_error(path)


def _stored_files(path: Path, note: Notify) -> list[StoredFile]:
    """The file at `path`, or those of the archive that it is, if it was named itself."""
    return files_in_archive(path, note) if is_archive(path) and path.is_file() else [StoredFile.at(path)]


def _missing_error(path: Path) -> RequestError:
    """The error for a path that does not exist; a URL gets back the second slash that `Path` drops."""
    name = re.sub(r"^(\w+):/+(?=.)", r"\1://", str(path))
    known = [BUILTIN, KEYWORDS, *(f"corpus:{corpus.name}" for corpus in CORPORA)]
    choices = [one for one in known if one.partition(":")[2] == name] or similar_paths(path)
    return RequestError(f"{name} does not exist", choices=choices)
