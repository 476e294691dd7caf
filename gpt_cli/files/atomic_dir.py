"""Create directories atomically, with checksums; they are removed by one rename.

The commit: every file is written and flushed, SHA256SUMS last (`sha256sum -c SHA256SUMS` verifies it); then the
temporary directory is flushed, renamed to its final name, and its parent flushed. So a directory with the final name is
complete; a crash leaves only `.tmp-*` and `.trash-*`, which are ignored.
"""

import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from gpt_cli.errors import UserError
from gpt_cli.files.safe_io import (
    NO_FOLLOW,
    DiskError,
    list_directory,
    make_directory,
    sha256_file,
    sync_directory,
    translate_os_errors,
    write_file,
)
from gpt_cli.files.sums import SUMS, DamagedError, format_sums, read_member, read_sums

_TEMPORARY = ".tmp-"
_TRASH = ".trash-"
_CLOCK_TICK = 50_000_000  # nanoseconds: coarser than the timestamps of file systems


class ExistsError(UserError):
    """The path exists already."""


@contextmanager
def atomic_directory(final: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a new temporary directory beside `final`; when the context exits it is committed as `final`.

    The caller creates regular files in it, no directories. If it raises, the directory is removed and `final` is
    unchanged. If `final` exists: ExistsError, or, with `replace`, it is renamed just before the commit and then deleted
    (a crash between the two renames leaves neither, so `replace` is for directories that can be made again).
    """
    with _temporary_directory(final, replace=replace) as temporary:
        yield temporary
        sums = {name: sha256_file(temporary / name) for name in list_directory(temporary)}
        for name in sums:
            _flush(temporary / name)
        _commit(temporary, final, sums, replace=replace)


def commit_files(final: Path, contents: Mapping[str, bytes | Iterable[bytes]], *, replace: bool = False) -> None:
    """Commit `final` with these files, hashed while they are written. Raises as `atomic_directory` does."""
    with _temporary_directory(final, replace=replace) as temporary:
        sums = {name: write_file(temporary / name, data) for name, data in contents.items()}
        _commit(temporary, final, sums, replace=replace)


class ChecksumCache:
    """The stat results of files whose checksums this process has verified: unchanged files are not read again.

    A bit flip on the disk, which leaves the stat result as it is, is not detected; so files that are loaded are always
    verified in full.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str, int, int, int, int, int, str]] = set()

    def is_valid(self, path: Path, sha256: str) -> bool:
        """True if `path` was verified to have this checksum, and has not changed since."""
        return (*_stat_key(path), sha256) in self._known

    def add(self, path: Path, sha256: str, before: tuple[str, int, int, int, int, int], began: int) -> None:
        """Add a file that has this checksum; `before` is its stat key when reading it `began` (in nanoseconds).

        It is not added if it changed meanwhile, or so shortly before that a later change could have the same timestamp.
        """
        if before == _stat_key(path) and max(before[-2:]) < began - _CLOCK_TICK:
            self._known.add((*before, sha256))


def verify_directory(path: Path, verified: ChecksumCache | None = None) -> None:
    """Raise DamagedError, naming file and reason, unless `path` has exactly the files of its SHA256SUMS.

    Files in `verified` are not read again; those that are read are added to it.
    """
    for name, sha256 in _read_manifest(path).items():
        if verified is None:
            _verified(path / name, sha256, return_contents=False)
        elif not verified.is_valid(path / name, sha256):
            before, began = _stat_key(path / name), time.time_ns()
            _verified(path / name, sha256, return_contents=False)
            verified.add(path / name, sha256, before, began)


def read_directory(path: Path, names: Collection[str] = ()) -> dict[str, bytes]:
    """Verify the directory `path` and return the contents of the files `names`, read once.

    Raises DamagedError for a missing, unexpected or altered file, and for a name that SHA256SUMS does not list.
    """
    sums = _read_manifest(path, names)
    contents: dict[str, bytes] = {}
    for name, sha256 in sums.items():
        data = _verified(path / name, sha256, return_contents=name in names)
        if data is not None:
            contents[name] = data
    return contents


def _read_manifest(path: Path, names: Collection[str] = ()) -> dict[str, str]:
    """SHA256SUMS of the directory `path`. Raises DamagedError unless it has exactly these files, `names` among them."""
    sums = read_sums(path)
    present = set(list_directory(path)) - {SUMS}
    if missing := sorted((set(sums) | set(names)) - present):
        raise DamagedError(f"{path} is damaged: {missing[0]} is missing")
    if unexpected := sorted(present - set(sums)):
        raise DamagedError(f"{path} is damaged: {unexpected[0]} does not belong to it")
    return sums


def _stat_key(path: Path) -> tuple[str, int, int, int, int, int]:
    """The cache key of the file `path`: name, device, inode, size, times of its contents and its inode."""
    with translate_os_errors("look at", path):
        status = os.lstat(path)
    return str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def remove_directory(path: Path) -> None:
    """Remove the directory `path`. It is renamed first, so that a crash never leaves a part of it at `path`."""
    with translate_os_errors("remove", path):
        trash = _move_to_trash(path)
        sync_directory(path.parent)
        shutil.rmtree(trash)


def remove_stale_temp_dirs(parent: Path) -> None:
    """Remove what crashes left in `parent`. The caller must hold its lock: work in progress looks the same."""
    for name in list_directory(parent):
        if name.startswith((_TEMPORARY, _TRASH)):
            leftover = parent / name
            with translate_os_errors("remove", leftover):
                if leftover.is_dir() and not leftover.is_symlink():
                    shutil.rmtree(leftover)
                else:
                    os.unlink(leftover)


@contextmanager
def _temporary_directory(final: Path, *, replace: bool) -> Iterator[Path]:
    """Yield a new directory beside `final`; if the caller raises, it and the parents made for it are removed."""
    if os.path.lexists(final):
        if not replace:
            raise ExistsError(f"{final} exists already")
        if final.is_symlink() or not final.is_dir():
            raise DiskError(f"cannot replace {final}: it is not a directory")
    with translate_os_errors("create", final):
        missing_parents = [parent for parent in final.parents if not parent.exists()]
    make_directory(final.parent)
    temporary = final.with_name(f"{_TEMPORARY}{final.name}-{secrets.token_hex(4)}")
    with translate_os_errors("create", final):
        os.mkdir(temporary)
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):  # someone else may have put something there
            for parent in missing_parents:
                os.rmdir(parent)
        raise


def _commit(temporary: Path, final: Path, sums: Mapping[str, str], *, replace: bool) -> None:
    write_file(temporary / SUMS, format_sums(sums.items()))
    sync_directory(temporary)
    with translate_os_errors("create", final):
        replaced = _move_to_trash(final) if replace and final.is_dir() else None
        try:
            os.rename(temporary, final)
        except OSError as error:
            if replaced is not None:
                os.rename(replaced, final)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise ExistsError(f"{final} exists already: another process made it just now") from error
            raise
        sync_directory(final.parent)
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)


def _move_to_trash(path: Path) -> Path:
    trash = path.with_name(f"{_TRASH}{path.name}-{secrets.token_hex(4)}")
    os.rename(path, trash)
    return trash


def _flush(path: Path) -> None:
    with translate_os_errors("flush", path):
        descriptor = os.open(path, os.O_RDWR | NO_FOLLOW)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _verified(path: Path, sha256: str, *, return_contents: bool) -> bytes | None:
    """Verify `path`; returns its contents if `return_contents`. Raises DamagedError for another checksum."""
    digest = hashlib.sha256()
    contents = bytearray()
    for chunk in read_member(path):
        digest.update(chunk)
        if return_contents:
            contents += chunk
    if digest.hexdigest() != sha256:
        raise DamagedError(f"{path.parent} is damaged: {path.name} does not match its SHA-256")
    return bytes(contents) if return_contents else None
