"""Create directories atomically, with checksums; remove them by one rename.

A committed directory has exactly the files of its SHA256SUMS (`sha256sum -c SHA256SUMS` verifies it). The commit: every
file is written and flushed, SHA256SUMS last; then the temporary directory is flushed, renamed to its final name, and
its parent flushed. So a directory with the final name is complete; a crash leaves only `.tmp-*` and `.trash-*`.
"""

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from gpt_cli.errors import UserError
from gpt_cli.files.durable import (
    list_directory,
    make_directory,
    read_chunks,
    sha256_file,
    sync_directory,
    sync_file,
    write_file,
)
from gpt_cli.files.os_errors import DiskError, translate_os_errors

SUMS = "SHA256SUMS"
_SUMS_LIMIT = 1 << 20
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_][A-Za-z0-9._-]*)")  # as `sha256sum` writes them
_TEMPORARY, _TRASH = ".tmp-", ".trash-"
_CLOCK_TICK = 50_000_000  # nanoseconds: coarser than the timestamps of file systems

VerifiedFiles = set[tuple[str, int, int, int, int, int, str]]
"""Path, stat results and SHA-256 of files that this process has verified.

A flipped bit on the disk, which leaves the stat result as it is, is not noticed by them: what is loaded is always read.
"""


class DamagedError(UserError):
    """The files differ from those written: a flipped bit, a missing or an unexpected file."""


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
            sync_file(temporary / name)
        _commit(temporary, final, sums, replace=replace)


def commit_files(final: Path, contents: Mapping[str, bytes | Iterable[bytes]], *, replace: bool = False) -> None:
    """Commit `final` with these files, hashed while they are written. Raises as `atomic_directory` does."""
    with _temporary_directory(final, replace=replace) as temporary:
        sums = {name: write_file(temporary / name, data) for name, data in contents.items()}
        _commit(temporary, final, sums, replace=replace)


def verify_directory(path: Path, verified: VerifiedFiles | None = None) -> None:
    """Raise DamagedError, naming file and reason, unless `path` has exactly the files of its SHA256SUMS.

    Files that are in `verified` and unchanged are not read again; those that are read are added to it.
    """
    for name, sha256 in _read_manifest(path).items():
        if verified is None:
            _verified(path / name, sha256)
            continue
        before, began = _stat_key(path / name), time.time_ns()
        if (*before, sha256) in verified:
            continue
        _verified(path / name, sha256)
        # Not if it changed meanwhile, or so shortly before that a later change could have the same timestamp.
        if before == _stat_key(path / name) and max(before[-2:]) < began - _CLOCK_TICK:
            verified.add((*before, sha256))


def read_directory(path: Path, names: Collection[str] = (), *, others: bool = True) -> dict[str, bytes]:
    """Verify the directory `path` and return the contents of the files `names`, read once.

    `others` False: the contents of the other files are left to the caller, who has their sums from `read_sums`.
    Raises DamagedError for a missing, unexpected or altered file, and for a name that SHA256SUMS does not list.
    """
    sums = _read_manifest(path, names)
    chosen = sums if others else {name: sums[name] for name in names}
    contents = {name: _verified(path / name, sha256, keep=name in names) for name, sha256 in chosen.items()}
    return {name: data for name, data in contents.items() if name in names}


def verify_files(path: Path, names: Collection[str]) -> None:
    """Raise DamagedError unless those of the files `names` match that SHA256SUMS of `path` lists, if there is one.

    For a directory that came from elsewhere: others may have added files, and links are followed.
    """
    sums = read_sums(path, follow=True) if os.path.lexists(path / SUMS) else {}
    for name in sorted(sums.keys() & set(names)):
        _verified(path / name, sums[name], follow=True)


def read_sums(path: Path, *, follow: bool = False) -> dict[str, str]:
    """Return SHA256SUMS of the directory `path`: {file name: hex}. Raises DamagedError if missing or malformed."""
    file = path / SUMS
    text = b"".join(_read_member(file, follow=follow, limit=_SUMS_LIMIT)).decode("utf-8", errors="replace")
    sums: dict[str, str] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in sums or not text.endswith("\n"):
            raise DamagedError(f"{path} is damaged: {SUMS} has a malformed line", where=f"{file}:{number}")
        sums[match[2]] = match[1]
    return sums


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
    write_file(temporary / SUMS, _format_sums(sums))
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


def _format_sums(sums: Mapping[str, str]) -> bytes:
    lines = [f"{sha256}  {name}" for name, sha256 in sorted(sums.items())]
    if invalid := [line for line in lines if not _LINE.fullmatch(line)]:
        raise ValueError(f"not a name for a file with a sum: {invalid[0]!r}")
    return "".join(f"{line}\n" for line in lines).encode()


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
    """Name, device, inode, size, and the times of the contents and of the inode of the file `path`."""
    with translate_os_errors("look at", path):
        status = os.lstat(path)
    return str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _verified(path: Path, sha256: str, *, keep: bool = False, follow: bool = False) -> bytes:
    """Verify the file `path`; returns its contents, or b"" unless `keep`. Raises DamagedError for another checksum."""
    digest = hashlib.sha256()
    chunks: list[bytes] = []
    for chunk in _read_member(path, follow=follow):
        digest.update(chunk)
        if keep:
            chunks.append(chunk)
    if digest.hexdigest() != sha256:
        raise DamagedError(f"{path.parent} is damaged: {path.name} does not match its SHA-256")
    return b"".join(chunks)


def _read_member(path: Path, *, follow: bool, limit: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file of a directory with checksums.

    Raises DamagedError if it is missing, a device, a bad sector, larger than `limit` and, unless `follow`, a link.
    """
    size = 0
    with translate_os_errors("read", path):
        try:
            for chunk in read_chunks(path, follow=follow):
                size += len(chunk)
                if limit is not None and size > limit:
                    raise DamagedError(f"{path.parent} is damaged: {path.name} is too large")
                yield chunk
        except DiskError as error:
            raise DamagedError(f"{path.parent} is damaged: {path.name} is not a file") from error
        except FileNotFoundError as error:
            raise DamagedError(f"{path.parent} is damaged: {path.name} is missing") from error
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ELOOP):
                raise
            reason = (error.strerror or "").lower()  # as in other messages
            raise DamagedError(f"{path.parent} is damaged: {path.name} cannot be read ({reason})") from error
