"""Archives as the folders they hold: the members of .zip and .tar, also compressed, are read where they are.

Nothing is extracted to named files. A compressed .tar is expanded to a temporary file, so that its members can be read
in any order.
"""

import stat
import tarfile
import weakref
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import IO

from gpt_cli.corpus.folders import Folder, choose_texts
from gpt_cli.corpus.records import LONGEST_RECORD
from gpt_cli.corpus.stored_file import StoredFile, expand, inner_suffix, spool
from gpt_cli.errors import Notify, UserError
from gpt_cli.files.durable import CHUNK
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.terminal.words import plural

_LONGEST_NAME = 4096  # bytes, with its folders; nothing can be unpacked to a longer one
_MAX_DEPTH = 100  # folders in each other: the path of each is held
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others expand any number of bytes at once

Entry = tuple[str, int | None, Callable[[], Iterator[bytes]]]
"""(name; size, None for a folder and -1 for what is neither; a function that returns its bytes in pieces)."""


def is_archive(path: Path) -> bool:
    """True if the suffix of `path` is that of an archive that is read as a folder."""
    return path.suffix.lower() in (".zip", ".tgz") or inner_suffix(path) == ".tar"


def files_in_archive(path: Path, note: Notify) -> list[StoredFile]:
    """The text files of an archive, in the order and by the rules of the folder that it unpacks to.

    Symbolic links, devices and the like are skipped. Raises UserError for an archive that is damaged or has no text.
    """
    with _translate_errors(path, path):
        status = path.stat()
        entries = _list_entries(path, path.absolute(), status.st_ino, status.st_size, status.st_mtime_ns)
    cleaned = ((_clean(name), size, read) for name, size, read in entries)
    members = {name: (size, read) for name, size, read in cleaned if 0 < len(name) <= _LONGEST_NAME}
    files = {str(path / name): StoredFile(path / name, size, read) for name, (size, read) in members.items() if size}
    if deep := next((name for name in members if name.count("/") > _MAX_DEPTH), None):
        raise UserError(f"{path} has more than {_MAX_DEPTH} folders in each other: {deep[:100]}...")
    if special := sum(size == -1 for size, _ in members.values()):
        note(f"skipped {plural(special, 'special file')} such as links in {path}")
    folders = _walk(path, {name: size is None for name, (size, _) in members.items() if size != -1})
    return [files[name] for name in choose_texts(path, folders, files.__contains__, note)]


def _clean(name: str) -> str:
    """`name` as a relative path without a `.` or an empty part; one with `..` is hidden, as a name with a dot."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _walk(root: Path, members: dict[str, bool]) -> Iterator[Folder]:
    """As `os.walk` over members of an archive, by their names; True for those that are folders."""
    tree: defaultdict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for name, is_folder in members.items():
        parent, _, last = name.rpartition("/")
        tree[parent][0 if is_folder else 1].add(last)
        while parent:
            parent, _, last = parent.rpartition("/")
            tree[parent][0].add(last)
    pending = [""]
    while pending:
        folder = pending.pop()
        subfolders, files = map(sorted, tree[folder])
        yield str(root / folder), subfolders, files
        pending += [f"{folder}/{name}".lstrip("/") for name in subfolders]


@lru_cache(maxsize=4)
def _list_entries(path: Path, *_state: object) -> list[Entry]:
    """List an archive, once as long as its file does not change: a compressed .tar is expanded for that."""
    return list(_zip_entries(path) if path.suffix.lower() == ".zip" else _tar_entries(path))


@lru_cache(maxsize=16)
def _open_zip(path: Path, _reader: object) -> zipfile.ZipFile:
    """Open an archive. Only a few stay open: the files of a process are limited, and a directory takes long to read."""
    return zipfile.ZipFile(path)


def _zip_entries(path: Path) -> Iterator[Entry]:
    def read(member: zipfile.ZipInfo) -> Iterator[bytes]:
        with _translate_errors(path, path / member.filename):
            if member.compress_type not in _METHODS:
                raise UserError(f"{path / member.filename} is compressed by another method than deflate")
            with _open_zip(path, read).open(member) as stream:
                yield from iter(partial(stream.read, CHUNK), b"")

    for member in _open_zip(path, read).infolist():
        is_special = stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG)
        size = None if member.is_dir() else -1 if is_special else member.file_size
        yield member.filename, size, partial(read, member)


def _tar_entries(path: Path) -> Iterator[Entry]:
    stored, is_plain = StoredFile.at(path), path.suffix.lower() == ".tar"
    file = stored.open() if is_plain else spool(expand(path, stored.read_stored()))
    lock = Lock()  # the members share the position in `file`

    def read(start: int, size: int) -> Iterator[bytes]:
        with _translate_errors(path, path), path.open("rb") if is_plain else nullcontext(file) as opened:
            for place in range(start, start + size, CHUNK):
                with lock:
                    opened.seek(place)
                    data = opened.read(min(CHUNK, start + size - place))
                yield data

    seen: dict[str, tuple[int, int]] = {}  # places of files, to which hard links lead
    if not is_plain:
        weakref.finalize(read, file.close)
    with closing(file) if is_plain else nullcontext(), tarfile.TarFile(fileobj=_Headers(file)) as archive:  # type: ignore[arg-type]  # it only reads and seeks
        for member in archive:
            start, size = member.offset_data, member.size
            if member.islnk():
                start, size = seen.get(member.linkname, (0, -1))
            elif member.isreg() and not member.issparse():
                seen[member.name] = start, size
            else:
                size = -1
            yield member.name, None if member.isdir() else size, partial(read, start, size)
            archive.members.clear()  # type: ignore[attr-defined]  # which would keep a kilobyte for each
        file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE).strip(b"\0"):  # where tarfile stops without an error
            raise UserError(f"{path} is damaged at byte {archive.offset:,}")


class _Headers:
    """A file whose headers are read by `tarfile`, which would read one of any length."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > LONGEST_RECORD:
            raise tarfile.ReadError("a name or header is too long")
        return self._file.read(size)


@contextmanager
def _translate_errors(archive: Path, place: Path) -> Iterator[None]:
    try:
        with translate_os_errors("read", archive):
            yield
    except (UserError, MemoryError, GeneratorExit):
        raise
    except Exception as error:  # the errors of the libraries have no base in common
        raise UserError(f"cannot read {place}: {error}") from error
