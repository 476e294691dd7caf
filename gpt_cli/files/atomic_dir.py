"""A directory that appears whole or not at all, has checksums, and is removed by one rename.

The commit: every file is written and flushed, SHA256SUMS last (`sha256sum -c SHA256SUMS` verifies it without
us); then the temporary directory is flushed, renamed to its final name, and its parent flushed. Whoever finds
the final name finds all of it; what a crash leaves is called `.tmp-*` or `.trash-*` and means nothing.
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
_CLOCK_TICK = 50_000_000  # nanoseconds: coarser than the times that file systems note


class ExistsError(UserError):
    """The final name is taken."""


@contextmanager
def atomic_directory(final: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a new temporary directory beside `final`; when the block ends well it is committed as `final`.

    The block creates plain files in it, no directories. When it raises, the directory is removed and `final`
    is as it was. If `final` exists: ExistsError, or, with `replace`, it is moved aside just before and then
    deleted (a crash between the two renames leaves neither, so `replace` is for what can be made again).
    """
    with _temporary_directory(final, replace=replace) as temporary:
        yield temporary
        sums = {name: sha256_file(temporary / name) for name in list_directory(temporary)}
        for name in sums:
            _flush(temporary / name)
        _commit(temporary, final, sums, replace=replace)


def commit_files(final: Path, contents: Mapping[str, bytes | Iterable[bytes]], *, replace: bool = False) -> None:
    """Commit `final` made of these files, hashed while they are written. Errors as in `atomic_directory`."""
    with _temporary_directory(final, replace=replace) as temporary:
        sums = {name: write_file(temporary / name, data) for name, data in contents.items()}
        _commit(temporary, final, sums, replace=replace)


class ChecksumCache:
    """Files whose sums this process has seen to be right, as the file system describes them: unchanged, still right.

    It spares reading the same gigabytes again and again. What a file system does not tell, a bit that flips on the
    disk, it does not see: whatever is loaded is read and summed whole.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str, int, int, int, int, int, str]] = set()

    def is_valid(self, path: Path, sha256: str) -> bool:
        """True if the file `path`, as it is now, is known to have this sum."""
        return (*_stat_key(path), sha256) in self._known

    def add(self, path: Path, sha256: str, before: tuple[str, int, int, int, int, int], began: int) -> None:
        """The file, that was `before` when reading it `began` (in nanoseconds), has this sum.

        It is not taken in if it changed meanwhile, or so shortly before that a later change could have the same time.
        """
        if before == _stat_key(path) and max(before[-2:]) < began - _CLOCK_TICK:
            self._known.add((*before, sha256))


def verify_directory(path: Path, verified: ChecksumCache | None = None) -> None:
    """Raise DamagedError, naming file and reason, unless `path` holds exactly what its SHA256SUMS says.

    Files that `verified` knows are not read again, and what is read is added to it.
    """
    for name, sha256 in _read_manifest(path).items():
        if verified is None:
            _verified(path / name, sha256, keep=False)
        elif not verified.is_valid(path / name, sha256):
            before, began = _stat_key(path / name), time.time_ns()
            _verified(path / name, sha256, keep=False)
            verified.add(path / name, sha256, before, began)


def read_directory(path: Path, names: Collection[str] = ()) -> dict[str, bytes]:
    """Verify the directory `path` and return the files `names`: the very bytes that were verified.

    Raises DamagedError for a missing, foreign or altered file, and for a name that SHA256SUMS does not list.
    """
    sums = _read_manifest(path, names)
    kept: dict[str, bytes] = {}
    for name, sha256 in sums.items():
        data = _verified(path / name, sha256, keep=name in names)
        if data is not None:
            kept[name] = data
    return kept


def _read_manifest(path: Path, names: Collection[str] = ()) -> dict[str, str]:
    """SHA256SUMS of the directory `path`, which holds exactly its files, and `names` among them."""
    sums = read_sums(path)
    present = set(list_directory(path)) - {SUMS}
    if absent := sorted((set(sums) | set(names)) - present):
        raise DamagedError(f"{path} is damaged: {absent[0]} is missing")
    if foreign := sorted(present - set(sums)):
        raise DamagedError(f"{path} is damaged: {foreign[0]} does not belong to it")
    return sums


def _stat_key(path: Path) -> tuple[str, int, int, int, int, int]:
    """The cache key of the file `path`: name, device, inode, size, times of its contents and its inode."""
    with translate_os_errors("look at", path):
        facts = os.lstat(path)
    return str(path), facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def remove_directory(path: Path) -> None:
    """Remove the directory `path`: renamed first, so that a crash never leaves a half under the name."""
    with translate_os_errors("remove", path):
        trash = _move_to_trash(path)
        sync_directory(path.parent)
        shutil.rmtree(trash)


def remove_stale_temp_dirs(parent: Path) -> None:
    """Remove what crashes left in `parent`. Only for who holds its lock: work in progress looks the same."""
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
    """A new directory beside `final`, removed when the block raises, as are the parents made for it."""
    if os.path.lexists(final):
        if not replace:
            raise ExistsError(f"{final} exists already")
        if final.is_symlink() or not final.is_dir():
            raise DiskError(f"cannot replace {final}: it is not a directory")
    with translate_os_errors("create", final):
        absent = [parent for parent in final.parents if not parent.exists()]
    make_directory(final.parent)
    temporary = final.with_name(f"{_TEMPORARY}{final.name}-{secrets.token_hex(4)}")
    with translate_os_errors("create", final):
        os.mkdir(temporary)
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):  # someone else may have put something there
            for parent in absent:
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


def _verified(path: Path, sha256: str, *, keep: bool) -> bytes | None:
    """The contents of `path` if `keep`, once they have the sum `sha256`."""
    digest = hashlib.sha256()
    kept = bytearray()
    for chunk in read_member(path):
        digest.update(chunk)
        if keep:
            kept += chunk
    if digest.hexdigest() != sha256:
        raise DamagedError(f"{path.parent} is damaged: {path.name} does not match its SHA-256")
    return bytes(kept) if keep else None
