"""A disk that fails on command: every file operation under one folder is counted, and any of them can be refused."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.errors import UserError

BY_PATH = ("mkdir", "rename", "replace", "unlink", "rmdir", "truncate", "listdir")
BY_DESCRIPTOR = ("write", "fsync")


class FaultyDisk:
    """Stands between `os` and the package. `log` tells what was done; operation `fail_at` (from 0) is refused.

    With `lasting`, so is every later operation that `fills` the disk. With `short`, each write takes one byte only.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = str(root)
        self.log: list[tuple[str, str]] = []
        self.fail_at: int | None = None
        self.error = 0
        self.lasting = False
        self.short = False
        self._paths: dict[int, str] = {}
        self._open, self._close = os.open, os.close
        monkeypatch.setattr(os, "open", self._opened)
        monkeypatch.setattr(os, "close", self._closed)
        for name in BY_PATH:
            monkeypatch.setattr(os, name, self._by_path(name, getattr(os, name)))
        for name in BY_DESCRIPTOR:
            monkeypatch.setattr(os, name, self._by_descriptor(name, getattr(os, name)))

    def fail(self, at: int, error: int, *, lasting: bool = False) -> None:
        """Start counting, and refuse operation number `at` with the error number `error`."""
        self.log.clear()
        self.fail_at, self.error, self.lasting = at, error, lasting

    def each_failure(self, action: Callable[[], object], error: int, *, lasting: bool = False) -> Iterator[UserError]:
        """Do `action` again and again, refusing its first operation, then its second, ..., until it succeeds.

        Yields the UserError of each failure, with the disk healthy again; any other exception is raised.
        """
        at = 0
        while True:
            self.fail(at, error, lasting=lasting)
            try:
                action()
            except UserError as failure:
                self.fail_at = None
                yield failure
            else:
                self.fail_at = None
                return
            at += 1

    def _meet(self, name: str, path: str) -> None:
        here = len(self.log)
        self.log.append((name, path))
        if self.fail_at is None:
            return
        if here == self.fail_at or (self.lasting and here > self.fail_at and name in ("write", "mkdir", "fsync")):
            raise OSError(self.error, os.strerror(self.error), path)

    def _concerns(self, path: Any, options: dict[str, Any]) -> bool:
        return options.get("dir_fd") is None and not isinstance(path, int) and os.fspath(path).startswith(self.root)

    def _opened(self, path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if not self._concerns(path, options):
            return self._open(path, flags, *rest, **options)
        self._meet("create" if flags & os.O_CREAT else "open", os.fspath(path))
        descriptor = self._open(path, flags, *rest, **options)
        self._paths[descriptor] = os.fspath(path)
        return descriptor

    def _closed(self, descriptor: int) -> None:
        self._paths.pop(descriptor, None)
        self._close(descriptor)

    def _by_path(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any = ".", *rest: Any, **options: Any) -> Any:
            if self._concerns(path, options):
                self._meet(name, os.fspath(path))
            return call(path, *rest, **options)

        return wrapped

    def _by_descriptor(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(descriptor: int, *rest: Any) -> Any:
            if descriptor in self._paths:
                self._meet(name, self._paths[descriptor])
                if self.short and name == "write":
                    return call(descriptor, rest[0][:1])
            return call(descriptor, *rest)

        return wrapped
