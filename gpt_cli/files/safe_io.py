"""Single files: durable writes, bounded reads, atomic replacement."""

import errno
import hashlib
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path

from gpt_cli.errors import UserError
from gpt_cli.terminal.words import format_size as format_size

CHUNK = 1 << 20
_LONGEST_NAME = 255  # bytes, on the file systems in use
BINARY = getattr(os, "O_BINARY", 0)  # Windows only; there, text mode would rewrite newlines
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)


class DiskError(UserError):
    """The operating system refused a file operation: no space, no permission, a read-only or failing disk."""


def write_file(path: Path, data: bytes | Iterable[bytes]) -> str:
    """Create the file `path` with `data`, flushed to the disk, and return its SHA-256 in hex.

    The file must not exist (so a link or a device in its place is never written to); its directory must, and
    is not flushed. A failed write leaves no file.
    """
    with translate_os_errors("write", path, len(data) if isinstance(data, bytes) else None):
        return _create_file(path, [data] if isinstance(data, bytes) else data)


class NewFile:
    """A new file that is written in pieces; `close` flushes it to the disk. The file must not exist.

    For temporary directories: a failed write leaves a part of the file, which is removed with the directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with translate_os_errors("write", path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666)

    def write(self, data: bytes | memoryview) -> None:
        with translate_os_errors("write", self._path):
            write_all(self._descriptor, data)

    def overwrite_header(self, data: bytes) -> None:
        """Write `data` over as many bytes at the start of the file."""
        with translate_os_errors("write", self._path):
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            write_all(self._descriptor, data)

    def close(self) -> None:
        """Flush the file to the disk."""
        with translate_os_errors("write", self._path):
            try:
                os.fsync(self._descriptor)
            finally:
                os.close(self._descriptor)

    def abort(self) -> None:
        """Close the file as it is."""
        with suppress(OSError):
            os.close(self._descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path`: a reader, or a power cut, finds the old file or the new one, never a mixture.

    Raises DiskError if `path` is not a regular file.
    """
    require_regular_file(path)
    temporary = path.with_name(f".tmp-{path.name}-{secrets.token_hex(4)}")
    with translate_os_errors("write", path, len(data)):  # errors name `path`, not the temporary file
        _create_file(temporary, [data])
        try:
            os.replace(temporary, path)
            sync_directory(path.parent)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def read_file(path: Path, limit: int | None = None) -> bytes:
    """The bytes of the file `path`. Raises UserError, before reading all of it, if it has more than `limit` bytes.

    Without a limit only a regular file is read: a device may never end.
    """
    chunks: list[bytes] = []
    size = 0
    with translate_os_errors("read", path):
        for chunk in read_chunks(path, only_regular=limit is None):
            size += len(chunk)
            if limit is not None and size > limit:
                raise UserError(f"{path} is larger than {format_size(limit)}, the most that is read here")
            chunks.append(chunk)
    return b"".join(chunks)


def sha256_file(path: Path) -> str:
    """SHA-256 of the regular file `path`, in hex; memory does not grow with the file."""
    digest = hashlib.sha256()
    with translate_os_errors("read", path):
        for chunk in read_chunks(path):
            digest.update(chunk)
    return digest.hexdigest()


def make_directory(path: Path) -> None:
    """Create the directory `path` and the parents it lacks, each flushed to disk. May exist already."""
    missing = []
    with translate_os_errors("create", path):
        directory = path
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            sync_directory(directory.parent)


def list_directory(path: Path) -> list[str]:
    """The sorted names in the directory `path`; [] if it does not exist."""
    with translate_os_errors("list", path):
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []


def similar_paths(path: Path) -> list[str]:
    """The path beside `path`, which is not there, whose name is most like its name; none if none is."""
    try:
        names = [name for name in os.listdir(path.parent) if name != path.name]
        alike = get_close_matches(path.name, sorted(names))
        close = [name for name in alike if get_close_matches(path.stem, [Path(name).stem])]  # not by its suffix alone
        "".join([path.name, *close[:1]]).encode()  # a name that is not UTF-8 could not be typed
    except (OSError, ValueError):
        return []
    return [str(path.parent / name) for name in close[:1]]


def sync_directory(path: Path) -> None:
    """Flush the entries of the directory `path`, so that files created or moved there survive a power cut."""
    if sys.platform == "win32":  # has no such operation
        return
    with translate_os_errors("flush", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def require_space(path: Path, needed: int) -> None:
    """Raise DiskError if the file system of the directory `path` has less than `needed` bytes of free space."""
    with translate_os_errors("look at", path):
        if shutil.disk_usage(path).free < needed:
            raise _no_space(path, needed)


def require_regular_file(path: Path) -> None:
    """Raise DiskError if `path` exists and is no regular file: a link, a directory, a device."""
    with translate_os_errors("look at", path):
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
    if not stat.S_ISREG(mode):
        raise DiskError(f"cannot write {path}: {_kind(mode)} stands there, which is never replaced")


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`: os.write may write fewer bytes than it is given."""
    view = memoryview(data)
    while view:
        written = os.write(descriptor, view)
        if written == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        view = view[written:]


def read_chunks(path: Path, *, only_regular: bool = True, follow: bool = True) -> Iterator[bytes]:
    """Yield the bytes of `path` in chunks; `follow=False` refuses a symbolic link. Raises OSError and DiskError."""
    no_wait = NO_WAIT if only_regular else 0  # opening a pipe without a writer would block
    descriptor = os.open(path, os.O_RDONLY | BINARY | no_wait | (0 if follow else NO_FOLLOW))
    try:
        mode = os.fstat(descriptor).st_mode
        if only_regular and not stat.S_ISREG(mode):
            raise DiskError(f"cannot read {path}: it is {_kind(mode)}, not a file")
        while chunk := os.read(descriptor, CHUNK):
            yield chunk
    finally:
        os.close(descriptor)


@contextmanager
def translate_os_errors(action: str, path: Path, needed: int | None = None) -> Iterator[None]:
    """Raise an OSError as a DiskError: cannot `action` `path`, with the reason."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_space(path, needed) from error
        if error.errno == errno.EDQUOT:  # free space on the disk does not help
            raise DiskError(f"disk quota exceeded while writing {path}") from error
        needs_directory = error.errno == errno.ENOTDIR or (error.errno == errno.EEXIST and action == "create")
        if needs_directory and (file := _file_above(path)) is not None:
            raise DiskError(f"cannot {action} {path}: {file} is a file, not a directory") from error
        raise DiskError(f"cannot {action} {path}: {reason_of(error, path)}") from error


def _file_above(path: Path) -> Path | None:
    """The file that stands where `path` has, or is, a directory."""
    return next((folder for folder in (path, *path.parents) if folder.is_file()), None)


def reason_of(error: OSError, path: Path) -> str:
    """The reason of an `error` about `path`, with the owner of what is closed, or the length of a name too long."""
    reason = (error.strerror or str(error)).lower()
    if error.errno == errno.EACCES:
        return reason + owner_of(path)
    length = max((len(os.fsencode(part)) for part in path.parts), default=0)
    if error.errno == errno.ENAMETOOLONG and length > _LONGEST_NAME:
        return f"{reason} (a name has at most {_LONGEST_NAME} bytes, not {length})"
    return reason


def owner_of(path: Path) -> str:
    """The owner of what is closed, ` (PATH belongs to ann)`, for a message: `path`, or a folder above it.

    "" where nothing is known of it.
    """
    places = [place for place in (*reversed(path.parents), path) if os.path.lexists(place)]
    *folders, there = places or [path]
    closed = next((folder for folder in folders if not os.access(folder, os.X_OK)), there)
    if closed == path and folders and os.access(path, os.R_OK) and not os.access(folders[-1], os.W_OK):
        closed = folders[-1]  # in which nothing may be replaced
    try:
        return f" ({closed if closed.name else closed.absolute()} belongs to {_owner_of(closed)})"
    except (OSError, NotImplementedError):  # Windows has no owners
        return ""


def _owner_of(path: Path) -> str:
    """The owner of `path`, by name if there is one."""
    try:
        return path.owner()
    except KeyError:
        return f"user {path.stat().st_uid}"


def _create_file(path: Path, chunks: Iterable[bytes]) -> str:
    """`write_file` that raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
    try:
        digest = hashlib.sha256()
        for chunk in _slices(chunks):
            digest.update(chunk)
            write_all(descriptor, chunk)
        os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            os.close(descriptor)
        with suppress(OSError):
            os.unlink(path)
        raise
    os.close(descriptor)
    return digest.hexdigest()


def _slices(chunks: Iterable[bytes]) -> Iterator[memoryview]:
    """`chunks` in pieces of at most CHUNK bytes, so that they are in the CPU cache when hashed and written."""
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(view), CHUNK):
            yield view[start : start + CHUNK]


def _no_space(path: Path, needed: int | None) -> DiskError:
    details = [] if needed is None else [f"needs {format_size(needed)}"]
    with suppress(OSError):  # e.g. no parent; the free space is only a detail
        details.append(f"{format_size(shutil.disk_usage(path if path.is_dir() else path.parent).free)} free")
    return DiskError(f"no space left on device while writing {path} ({', '.join(details)})")


def _kind(mode: int) -> str:
    kinds = [(stat.S_ISDIR, "a directory"), (stat.S_ISLNK, "a symbolic link"), (stat.S_ISREG, "a file")]
    return next((name for matches, name in kinds if matches(mode)), "a device or a pipe")
