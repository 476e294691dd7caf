"""Errors meant for the user, the exit codes, and the type of the callback for messages."""

import importlib
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Literal

from gpt_cli.terminal.escape import escape_control_chars

Notify = Callable[[str], None]
"""Called with a message for the user when nothing failed; `cli.output.note` prints it."""
OUT_OF_MEMORY_MESSAGES = ("out of memory", "DefaultCPUAllocator")
"""Words in the error of an allocator that has no memory left."""
ErrorKind = Literal[
    "set", "another run", "package", "no config", "no run", "no checkpoint", "no text", "damaged run", "run",
    "checkpoint", "token store", "foreign model", "runs folder", "config", "text", "classifier", "language model",
    "no runs", "not finite", "unknown characters", "no corpus",
]  # fmt: skip
"""Class of an error; `cli.hints` has one way out for each."""


class ExitCode(IntEnum):
    """The exit codes of `gpt` and of the processes of a training."""

    DONE = 0
    FAILED = 1  # the work could not be done: data, disk, memory, a loss that is not finite, a lock
    USAGE = 2  # the request is wrong: command line, config, settings that do not fit together
    BUG = 70  # an unexpected exception: never the answer to bad input
    LOST = 75  # to the launcher alone: of a process that lost another one
    INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT


class UserError(Exception):
    """The work failed for a reason the user can act on: printed as one `error:` line, without a traceback.

    An error is data: `where`, a place (`file:line:column`); `keys` of the config that `message` names; the `path` it is
    about; `choices`, what may have been meant; `kind`, its class; `hint`, where a room still writes one itself.
    """

    exit_code = ExitCode.FAILED

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        keys: Iterable[str] = (),
        path: object = None,
        choices: Sequence[str] = (),
        kind: ErrorKind | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self.keys: tuple[str, ...] = tuple(keys)
        self.path: str | None = None if path is None else str(path)
        self.choices: tuple[str, ...] = tuple(choices)
        self.kind = kind
        self._added_notes: list[str] = []

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # it follows what the error has now
        """The place and the hint, and what was added, as a traceback shows them (PEP 678)."""
        return [*self.render().splitlines()[1 + self.message.count("\n") :], *self._added_notes]

    def add_note(self, note: str, /) -> None:
        self._added_notes.append(note)

    @property
    def suggestion(self) -> str | None:
        """The hint, or else what may have been meant, as a sentence."""
        if self.hint is not None or not self.choices or self.kind not in (None, "set"):
            return self.hint
        return f"{self.keys[0]}={self.choices[0]}" if self.kind == "set" else f"did you mean {join_or(self.choices)}?"

    def render(self) -> str:
        """The error as it is printed: at most one line each for the error, the place and the hint."""
        lines = ["error: " + escape_control_chars(self.message, keep="\n")]
        if self.where is not None:
            lines.append(f"  --> {escape_control_chars(self.where)}")
        if self.suggestion is not None:
            lines.append(f"hint: {escape_control_chars(self.suggestion)}")
        return "\n".join(lines)


class NonFiniteError(UserError):
    """A loss, gradient, weight or moment is not finite. The events of a run name this type."""


class RequestError(UserError):
    """The request itself is wrong: the command line, the config, or settings that do not fit together."""

    exit_code = ExitCode.USAGE


class UsageError(RequestError):
    """The command line is wrong by itself: the way out is the help of the command."""


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def join_or(words: Sequence[str]) -> str:
    """`a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def require_package(name: str, beginning: str, install: str, error: type[UserError] = UserError) -> Any:
    """Import the module `name` of an optional package, which `pip install {install}` brings.

    Raises `error` if it is not installed, whose message starts with `beginning`: "chrF and BLEU need".
    """
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        message = f"{beginning} the package {name.partition('.')[0]}"
        raise error(message, kind="package", choices=[install]) from missing
