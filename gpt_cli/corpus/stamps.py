"""Remember what was made of files, for as long as none of them changes.

A change shows in the path, inode, size or time of a file, as Git's index has it; so what is remembered of a text is
found again without reading it.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpt_cli.errors import UserError
from gpt_cli.files import cache_dir, make_directory, read_file, replace_file

_RECENT = 2_000_000_000  # nanoseconds, coarser than the times of any file system: a later change may have the same time
_LIMIT = 1 << 24  # bytes
_RULES = 1  # of what is made of files; another number forgets what is remembered


class Stamps:
    """A value remembered under a `key`, a JSON value, for files; None in place of a path is a text without a file."""

    def __init__(self, key: object, paths: Sequence[Path | None]) -> None:
        self._began = time.time_ns()
        digest = hashlib.sha256(json.dumps([_RULES, key], default=str).encode()).hexdigest()
        self._record = cache_dir() / "texts" / f"{digest}.json"
        self._paths = paths
        self._stamp, _ = self._look()

    def recall(self) -> Any:
        """Return what was remembered of these files as they are now; None for nothing."""
        if self._stamp is None:
            return None
        try:
            record = json.loads(read_file(self._record, _LIMIT))
            return record["value"] if record["stamp"] == self._stamp else None
        except (OSError, UserError, ValueError, TypeError, KeyError):
            return None

    def remember(self, value: object) -> None:
        """Keep a JSON `value`, unless the files changed since this object was made, or shortly before."""
        stamp, changed = self._look()
        if stamp is None or stamp != self._stamp or changed > self._began - _RECENT:
            return
        with suppress(UserError):  # a cache that cannot be written
            make_directory(self._record.parent)
            replace_file(self._record, json.dumps({"stamp": stamp, "value": value}).encode())

    def _look(self) -> tuple[str | None, int]:
        """Return (a digest of the paths and the state of their files, when the last of them changed).

        The digest is None where one is no regular file.
        """
        digest, changed = hashlib.sha256(), 0
        for path in self._paths:
            try:
                status = os.stat(path) if path is not None else None
            except OSError:
                status = None
            if status is None or not stat.S_ISREG(status.st_mode):
                return None, 0
            times = status.st_mtime_ns, status.st_ctime_ns
            identity = (os.path.abspath(str(path)), status.st_dev, status.st_ino, status.st_size, *times)
            digest.update(repr(identity).encode(errors="surrogateescape"))
            changed = max(changed, *times)
        return digest.hexdigest(), changed
