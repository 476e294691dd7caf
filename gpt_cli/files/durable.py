"""Single files: durable writes, bounded reads, atomic replacement."""

import errno
import hashlib
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gpt_cli.errors import UserError
from gpt_cli.files.os_errors import DiskError, no_space, translate_os_errors
from gpt_cli.terminal.words import format_size

CHUNK = 1 << 20
BINARY = getattr(os, "O_BINARY", 0)  # Windows only; there, text mode would rewrite newlines
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def write_file(path: Path, data: bytes | Iterable[bytes]) -> str:
    """Create the file `path` with `data`, flushed to the disk, and return its SHA-256 in hex.

    The file must not exist (so a link or a device in its place is never written to); its directory must, and
    is not flushed. A failed write leaves no file.
    """
    with translate_os_errors("write", path, len(data) if isinstance(data, bytes) else None):
        return _create_file(path, [data] if isinstance(data, bytes) else data)


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
    """Return the bytes of the file `path`. Raises UserError, before reading them all, if there are more than `limit`.

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
    """Return the SHA-256 of the regular file `path`, in hex; memory does not grow with the file."""
    digest = hashlib.sha256()
    with translate_os_errors("read", path):
        for chunk in read_chunks(path):
            digest.update(chunk)
    return digest.hexdigest()


def make_directory(path: Path) -> None:
    """Create the directory `path` and the parents it lacks, each flushed to disk. May exist already."""
    with translate_os_errors("create", path):
        missing = [directory for directory in (path, *path.parents) if not directory.is_dir()]
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            sync_directory(directory.parent)


def list_directory(path: Path) -> list[str]:
    """Return the sorted names in the directory `path`; [] if it does not exist."""
    with translate_os_errors("list", path):
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []


def sync_directory(path: Path) -> None:
    """Flush the entries of the directory `path`, so that files created or moved there survive a power cut."""
    if sys.platform != "win32":  # which has no such operation
        _flush(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Flush a file that something else wrote."""
    _flush(path, os.O_RDWR | NO_FOLLOW)


def require_space(path: Path, needed: int) -> None:
    """Raise DiskError if the file system of the directory `path` has less than `needed` bytes of free space."""
    with translate_os_errors("look at", path):
        if shutil.disk_usage(path).free < needed:
            raise no_space(path, needed)


def require_regular_file(path: Path) -> None:
    """Raise DiskError if `path` exists and is no regular file: a link, a directory, a device."""
    with translate_os_errors("look at", path):
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
    if not stat.S_ISREG(mode):
        raise DiskError(f"cannot write {path}: {_kind(mode)} is in its place, which is never replaced")


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


def _flush(path: Path, flags: int) -> None:
    with translate_os_errors("flush", path):
        descriptor = os.open(path, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _kind(mode: int) -> str:
    kinds = [(stat.S_ISDIR, "a directory"), (stat.S_ISLNK, "a symbolic link"), (stat.S_ISREG, "a file")]
    return next((name for matches, name in kinds if matches(mode)), "a device or a pipe")
