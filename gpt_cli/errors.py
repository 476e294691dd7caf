"""Errors meant for the user, the exit codes, and the type of the callback for messages."""

import importlib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from gpt_cli.terminal.escape import escape_control_chars

Notify = Callable[[str], None]
"""Called with a message for the user when nothing failed; `cli.output.note` prints it."""


OUT_OF_MEMORY_MESSAGES = ("out of memory", "DefaultCPUAllocator")
"""The words of an allocator that has no memory left."""


def first_line(error: Exception) -> str:
    """The first line of what `error` says, or its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str | None:
    """A hint with the one of the `known` words, after `prefix`, that is most like `word`; None if none is like it."""
    close = get_close_matches("cuda" if word.lower() == "gpu" else word, known, 1)
    return f"did you mean {prefix}{close[0]}?" if close else None


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

    `where` is a place (`file:line:column`), printed as `--> where`; `hint` is the way out, printed as `hint: ...`.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self._added_notes: list[str] = []

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # it follows what the error has now
        """The place and the hint, and what was added, as a traceback shows them (PEP 678)."""
        return [*self.render().splitlines()[1 + self.message.count("\n") :], *self._added_notes]

    def add_note(self, note: str, /) -> None:
        self._added_notes.append(note)

    def render(self) -> str:
        """The error as it is printed: at most one line each for the error, the place and the hint."""
        lines = ["error: " + escape_control_chars(self.message, keep="\n")]
        if self.where is not None:
            lines.append(f"  --> {escape_control_chars(self.where)}")
        if self.hint is not None:
            lines.append(f"hint: {escape_control_chars(self.hint)}")
        return "\n".join(lines)


class NonFiniteError(UserError):
    """A loss, gradient, weight or moment is not finite. The events of a run name this type."""


class RequestError(UserError):
    """The request itself is wrong: the command line, the config, or settings that do not fit together."""

    exit_code = ExitCode.USAGE


def require_package(name: str, beginning: str, hint: str, error: type[UserError] = UserError) -> Any:
    """The module `name` of an optional package.

    Raises `error` if it is not installed, whose message starts with `beginning`: "chrF and BLEU need".
    """
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        raise error(f"{beginning} the package {name.partition('.')[0]}", hint=hint) from missing
