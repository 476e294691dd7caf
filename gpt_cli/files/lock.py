"""A lock for one writer per directory, which the operating system releases when the process ends."""

import errno
import json
import os
import socket
import sys
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpt_cli.errors import UserError
from gpt_cli.files.durable import BINARY, NO_FOLLOW, read_file, require_regular_file, write_all
from gpt_cli.files.os_errors import DiskError, reason_of, translate_os_errors

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of network file systems without locks
_LOCK_OFFSET = 1 << 30  # Windows locks bytes against readers, too: lock one beyond the file


class LockedError(UserError):
    """Another process holds the lock."""


class DirectoryLock(AbstractContextManager["DirectoryLock"]):
    """The lock of a directory, held from construction to `release` or the end of the process.

    The file `lock` in the directory has the holder (process, host, start) in readable form; it is not removed on
    release, as then two processes could each lock a file of their own.
    """

    def __init__(self, directory: Path, *, write: bool = True) -> None:
        """Acquire the lock. `write`: write the holder into the file. Raises LockedError."""
        self.path = directory / "lock"
        require_regular_file(self.path)
        with translate_os_errors("write", self.path):
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY | NO_FOLLOW, 0o666)
        try:
            with translate_os_errors("lock", self.path):
                self._acquire()
                if write:
                    os.ftruncate(self._descriptor, 0)
                    write_all(self._descriptor, json.dumps(_holder()).encode() + b"\n")
        except BaseException:
            self.release()
            raise

    def is_in_place(self) -> bool:
        """False if the directory was removed, moved or replaced since it was locked."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock explicitly: a child process may still have a copy of the descriptor."""
        if sys.platform != "win32":
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        with suppress(OSError):
            os.close(self._descriptor)

    def __exit__(self, *_: object) -> None:
        self.release()

    def _acquire(self) -> None:
        try:
            if sys.platform == "win32":
                os.lseek(self._descriptor, _LOCK_OFFSET, os.SEEK_SET)
                msvcrt.locking(self._descriptor, msvcrt.LK_NBLCK, 1)
                os.lseek(self._descriptor, 0, os.SEEK_SET)
            else:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            directory = self.path.parent
            if error.errno in _NO_LOCKS:
                raise DiskError(
                    f"cannot lock {self.path}: the file system has no locks ({reason_of(error, self.path)}), and"
                    " without one two runs could write there at once"
                ) from error
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
                raise
            raise LockedError(f"another process is writing to {directory} ({_describe_holder(self.path)})") from error


def is_locked(directory: Path) -> bool:
    """True if a process holds the lock of `directory`; it is tried only if the process that it names may be alive."""
    try:
        holder = _read_holder(directory / "lock")
        if holder["host"] == socket.gethostname():
            os.kill(int(holder["pid"]), 0)
    except PermissionError:  # alive, of another user
        pass
    except (OSError, UserError, ValueError, KeyError, TypeError, OverflowError):
        return False
    try:
        DirectoryLock(directory, write=False).release()
    except LockedError:
        return True
    except UserError:  # not ours to lock
        return False
    return False


def _holder() -> dict[str, str | int]:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": started}


def _read_holder(path: Path) -> dict[str, Any]:
    return dict(json.loads(read_file(path, limit=4096)))


def _describe_holder(path: Path) -> str:
    try:
        holder = _read_holder(path)
        return f"process {holder['pid']} on {holder['host']}, since {holder['started']}"
    except (ValueError, TypeError, KeyError):  # just created, or overwritten
        return "holder unknown"
