"""The cache of compiled libraries: each with a record of its build, and its SHA-256.

    network-KEY.json      the record; it is written last, so a library without one was never finished
    network-KEY-SUM.so    the library that it names

Files are opened once, without following links, and the owner, mode and kind of the descriptor are checked: the bytes
that are loaded are those that were checked, even if the names are replaced meanwhile.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from gpt_cli.cpu.common.trust import UntrustedError, require_own, require_trusted_parents
from gpt_cli.files import make_directory
from gpt_cli.files.durable import write_all

_LIMIT = 64_000_000  # bytes of a library
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class DamagedLibraryError(Exception):
    """The cached library is not the one that was compiled; the message says what is wrong with it."""


@dataclass(frozen=True)
class BuildRecord:
    """The build record of a library: by which compiler, with which flags, from sources with which SHA-256."""

    key: str
    compiler: str
    version: str
    flags: tuple[str, ...]
    sources: str
    sha256: str


class Store(AbstractContextManager["Store"]):
    """The folder, held open. Raises UntrustedError where somebody else could write to it, and OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        require_trusted_parents(path.parent)
        try:
            self._folder = os.open(path, _READ | os.O_DIRECTORY)
        except NotADirectoryError:
            raise UntrustedError(f"{path} is {'a symbolic link' if path.is_symlink() else 'no folder'}") from None
        try:
            require_own(str(path), os.fstat(self._folder))
        except UntrustedError:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path) -> Self:
        """Open the store at `path`, made for the user alone if it is missing. Raises UserError, too."""
        if not os.path.lexists(path):
            require_trusted_parents(path.parent)
            make_directory(path.parent)
            with suppress(FileExistsError):  # another process made it just now
                os.mkdir(path, 0o700)
        return cls(path)

    def close(self) -> None:
        os.close(self._folder)

    def __exit__(self, *_: object) -> None:
        self.close()

    def names(self) -> list[str]:
        """STEM-KEY of every library that has a record."""
        matches = (re.fullmatch(r"(\w+-[0-9a-f]{32})\.json", name) for name in os.listdir(self._folder))
        return sorted(match[1] for match in matches if match)

    def record(self, name: str) -> BuildRecord | None:
        """The build record of the library `name`; None if there is none. Raises DamagedLibraryError."""
        if (text := self.read_file(f"{name}.json", 1 << 20)) is None:
            return None
        try:
            fields: dict[str, Any] = json.loads(text)
            record = BuildRecord(**{**fields, "flags": tuple(fields["flags"])})
            is_valid = record.key == name.rpartition("-")[2] and re.fullmatch("[0-9a-f]{64}", record.sha256)
        except (ValueError, TypeError, KeyError):
            is_valid = None
        if not is_valid:
            raise DamagedLibraryError(f"{self.path / name}.json is no record of this library")
        return record

    def read(self, name: str) -> bytes | None:
        """The library `name`, its bytes checked; None if there is none. Raises DamagedLibraryError."""
        if (record := self.record(name)) is None:
            return None
        file = f"{name}-{record.sha256[:16]}.so"
        if (library := self.read_file(file, _LIMIT)) is None:
            raise DamagedLibraryError(f"{self.path / file} is missing")
        if hashlib.sha256(library).hexdigest() != record.sha256:
            raise DamagedLibraryError(f"{self.path / file} is damaged: its SHA-256 is not that of what was compiled")
        return library

    def write(self, stem: str, library: bytes, record: BuildRecord) -> None:
        """Keep `library`, replacing whatever is in its place. Raises OSError."""
        name = f"{stem}-{record.key}"
        self.write_file(f"{name}-{record.sha256[:16]}.so", library)
        self.write_file(f"{name}.json", json.dumps(asdict(record), indent=1).encode())
        for other in os.listdir(self._folder):
            if re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{16}}\.so", other) and record.sha256[:16] not in other:
                self.remove(other)

    def read_file(self, name: str, limit: int) -> bytes | None:
        """The file `name`, at most `limit` bytes; None if it is missing. Raises DamagedLibraryError."""
        path = self.path / name
        try:
            descriptor = os.open(name, _READ, dir_fd=self._folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            link = error.errno in (errno.ELOOP, errno.EMLINK)
            raise DamagedLibraryError(
                f"{path} is a symbolic link" if link else f"{path} cannot be opened: {error.strerror}"
            ) from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DamagedLibraryError(f"{path} is not a file")
            require_own(str(path), status)
            if status.st_size > limit:
                raise DamagedLibraryError(f"{path} is too large")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(limit)
        except UntrustedError as error:
            raise DamagedLibraryError(str(error)) from None
        except OSError as error:
            raise DamagedLibraryError(f"{path} cannot be read: {error.strerror}") from None
        finally:
            os.close(descriptor)

    def write_file(self, name: str, data: bytes) -> None:
        """Write `data` to `name` atomically, replacing anything there. Raises OSError."""
        temporary = f".tmp-{secrets.token_hex(8)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._folder)
        try:
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            try:
                os.replace(temporary, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except IsADirectoryError:
                self.remove(name)
                os.replace(temporary, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self._folder)
            raise

    def remove(self, name: str) -> None:
        """Remove the file or folder `name`; everything in this folder can be built again."""
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=self._folder)
            else:
                os.unlink(name, dir_fd=self._folder)
