"""An append-only file of lines: the logs of a run."""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from gpt_cli.files.durable import (
    BINARY,
    NO_FOLLOW,
    read_file,
    replace_file,
    require_regular_file,
    sync_directory,
    write_all,
)
from gpt_cli.files.os_errors import translate_os_errors


class AppendOnlyFile(AbstractContextManager["AppendOnlyFile"]):
    """An append-only text file of lines, open for writing.

    Each line is written at once, so it survives the end of the process; `sync` makes it survive a power cut. A last
    line without a newline (the writer was killed) is removed on opening.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = self._open()

    def append(self, line: str) -> None:
        assert "\n" not in line
        with translate_os_errors("write", self.path):
            write_all(self._descriptor, f"{line}\n".encode())

    def rewrite(self, lines: Iterable[bytes]) -> None:
        """Replace the whole file, atomically, by `lines`."""
        replace_file(self.path, b"".join(line + b"\n" for line in lines))
        descriptor = self._open()  # before the old one is closed: if that fails, `close` still has a descriptor
        self.close()
        self._descriptor = descriptor

    def sync(self) -> None:
        with translate_os_errors("flush", self.path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file. Closing twice is an error."""
        with translate_os_errors("close", self.path):
            os.close(self._descriptor)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> int:
        require_regular_file(self.path)
        with translate_os_errors("write", self.path):
            exists = self.path.exists()
            if exists:
                os.truncate(self.path, read_file(self.path).rfind(b"\n") + 1)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | BINARY | NO_FOLLOW, 0o666)
            if not exists:
                sync_directory(self.path.parent)
        return descriptor
