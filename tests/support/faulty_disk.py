"""Disks that fail on command: every file operation under one folder is counted, refused, or lost in a power cut."""

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.errors import UserError

BY_PATH = ("mkdir", "rename", "replace", "unlink", "rmdir", "truncate", "listdir")
BY_DESCRIPTOR = ("write", "fsync")

REASONS = {
    errno.EACCES: r"permission denied \(.* belongs to .*\)",
    errno.EROFS: "read-only file system",
    errno.EIO: "input/output error",
}
"""A pattern for each errno: the end of a message."""


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

    def fail(self, number: int, error: int, *, lasting: bool = False) -> None:
        """Start counting, and refuse operation `number` with the error number `error`."""
        self.log.clear()
        self.fail_at, self.error, self.lasting = number, error, lasting

    def each_failure(self, action: Callable[[], object], error: int, *, lasting: bool = False) -> Iterator[UserError]:
        """Do `action` again and again, refusing its first operation, then its second, ..., until it succeeds.

        Yields the UserError of each failure, with the disk healthy again; any other exception is raised.
        """
        number = 0
        while True:
            self.fail(number, error, lasting=lasting)
            try:
                action()
            except UserError as failure:
                self.fail_at = None
                yield failure
            else:
                self.fail_at = None
                return
            number += 1

    def meet(self, name: str, path: str, argument: Any = None) -> None:
        """Operation `name` on `path` is about to happen; `argument` is what is written, or the new name."""
        number = len(self.log)
        self.log.append((name, path))
        if self.fail_at is None:
            return
        if number == self.fail_at or (self.lasting and number > self.fail_at and name in ("write", "mkdir", "fsync")):
            raise OSError(self.error, os.strerror(self.error), path)

    def concerns(self, path: Any, options: dict[str, Any]) -> bool:
        return options.get("dir_fd") is None and not isinstance(path, int) and os.fspath(path).startswith(self.root)

    def _opened(self, path: Any, flags: int, *args: Any, **options: Any) -> int:
        if not self.concerns(path, options):
            return self._open(path, flags, *args, **options)
        self.meet("create" if flags & os.O_CREAT else "open", os.fspath(path))
        descriptor = self._open(path, flags, *args, **options)
        self._paths[descriptor] = os.fspath(path)
        return descriptor

    def _closed(self, descriptor: int) -> None:
        self._paths.pop(descriptor, None)
        self._close(descriptor)

    def _by_path(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(path: Any = ".", *args: Any, **options: Any) -> Any:
            if self.concerns(path, options):
                self.meet(name, os.fspath(path), args[0] if args else None)
            return call(path, *args, **options)

        return wrapper

    def _by_descriptor(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(descriptor: int, *args: Any) -> Any:
            if descriptor in self._paths:
                self.meet(name, self._paths[descriptor], args[0] if args else None)
                if self.short and name == "write":
                    return call(descriptor, args[0][:1])
            return call(descriptor, *args)

        return wrapper


@dataclass
class Node:
    """A file or a directory of the simulated disk: what it is now, and what of it would survive a power cut."""

    data: bytes = b""
    durable_data: bytes = b""
    names: dict[str, "Node"] = field(default_factory=dict)
    durable_names: dict[str, "Node"] = field(default_factory=dict)
    pending: list[dict[str, "Node | None"]] = field(default_factory=list)  # changes of names since the last fsync
    is_file: bool = False

    def change(self, names: dict[str, "Node | None"]) -> None:
        """Set or remove names, in one step."""
        self.pending.append(names)
        apply(self.names, names)


class PowerCut(FaultyDisk):
    """Keeps a model of what is safely on the disk, and shows what a power cut would leave.

    Of what was not flushed, a power cut keeps any part: of a file any prefix, of a directory any subset of the
    changes of its names. `before_each` is called before each operation. What is removed stays in the model.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, before_each: Callable[[], None]) -> None:
        self.disk = Node()
        self.before_each = before_each
        super().__init__(root, monkeypatch)

    def left_over(self, target: Path, dice: random.Random, survives: float) -> None:
        """Write what a power cut now would leave to `target`; each unflushed thing survives with this probability."""
        write_image(self.disk, target, lambda: dice.random() < survives, dice)

    def meet(self, name: str, path: str, argument: Any = None) -> None:
        self.before_each()
        super().meet(name, path, argument)
        if name in ("create", "mkdir"):
            self._parent(path).change({Path(path).name: Node(is_file=name == "create")})
        elif name == "write":
            self._find(path).data += bytes(argument)
        elif name in ("rename", "replace"):
            self._parent(path).change({Path(path).name: None, Path(argument).name: self._find(path)})
        elif name == "fsync":
            node = self._find(path)
            node.durable_data, node.durable_names = node.data, dict(node.names)
            node.pending.clear()

    def _find(self, path: str | Path) -> Node:
        node = self.disk
        for part in Path(path).relative_to(self.root).parts:
            node = node.names[part]
        return node

    def _parent(self, path: str) -> Node:
        return self._find(Path(path).parent)


def apply(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    """Change `names` as `change` says: a node is put there, None removes."""
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def write_image(node: Node, path: Path, survives: Callable[[], bool], dice: random.Random) -> None:
    """Write what is left of `node` to `path`."""
    if node.is_file:
        unflushed = len(node.data) - len(node.durable_data)
        n_survived = unflushed if survives() else dice.randint(0, unflushed)
        path.write_bytes(node.data[: len(node.durable_data) + n_survived])
        return
    path.mkdir()
    names = dict(node.durable_names)
    for change in node.pending:
        if survives():
            apply(names, change)
    for name, child in names.items():
        write_image(child, path / name, survives, dice)
