"""Errors and notes meant for the user, the exit codes, and how untrusted text is shown on a terminal."""

import unicodedata
from collections.abc import Callable
from enum import IntEnum

Notify = Callable[[str], None]
"""Is told what the user should know although nothing failed; `cli.output.note` prints it."""


WIDTH = 80
"""Columns of a terminal that everybody has."""


INTERRUPTED = 130
"""What `gpt` tells the shell after Ctrl-C: 128 + SIGINT."""


class ExitCode(IntEnum):
    """What `gpt` tells the shell."""

    DONE = 0
    FAILED = 1  # the work could not be done: data, disk, memory, a loss that is not finite, a lock
    USAGE = 2  # the request is wrong: command line, config, settings that do not fit together
    BUG = 70  # an unexpected exception: never the answer to bad input


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

    def render(self) -> str:
        """The error as it is printed: at most one line each for the error, the place and the hint."""
        lines = ["error: " + escape_control_chars(self.message, keep="\n")]
        if self.where is not None:
            lines.append(f"  --> {escape_control_chars(self.where)}")
        if self.hint is not None:
            lines.append(f"hint: {escape_control_chars(self.hint)}")
        return "\n".join(lines)


class RequestError(UserError):
    """The request itself is wrong: the command line, the config, or settings that do not fit together."""

    exit_code = ExitCode.USAGE


# Format characters (Cf) that reorder or hide text; joiners stay, because emoji and many scripts need them.
_BIDIRECTIONAL = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def escape_control_chars(text: str, keep: str = "") -> str:
    """`text` with every character that could drive a terminal made visible (ESC becomes `\\x1b`).

    Escaped are control characters (C0, DEL, C1), bidirectional overrides, line separators and lone surrogates,
    except those in `keep`. Samples, names and file contents pass through here before a terminal sees them.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _drives_terminal(c) else _visible(c) for c in text)


def display_width(text: str) -> int:
    """Terminal columns of `text`: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(character_width(character) for character in text)


def character_width(character: str) -> int:
    """Terminal columns of a character that does not drive it."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrap_line(line: str, columns: int) -> list[str]:
    """`line` cut into pieces of at most so many terminal columns (2 at least), after a space where there is one.

    The pieces together are the line, with every space and character of it.
    """
    pieces = []
    start = width = 0
    blank: int | None = None  # where a piece could end
    for place, character in enumerate(line):
        width += character_width(character)
        if width > columns:
            end = blank or place
            pieces.append(line[start:end])
            start, blank, width = end, None, display_width(line[end : place + 1])
        if character == " ":
            blank = place + 1
    return [*pieces, line[start:]]


def _drives_terminal(character: str) -> bool:
    return character in _BIDIRECTIONAL or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
