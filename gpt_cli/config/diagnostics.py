"""Diagnostics of a config: each with its location, all raised in one error."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpt_cli.errors import RequestError
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.table import shorten

KeyPath = tuple[str | int, ...]
"""A key, with the index of an item behind the key of a list: `("optim", "betas", 1)`."""

SHOWN = 10  # problems in one error; the rest is counted
MAX_SHOWN = 60  # columns of a key or a value in a message


@dataclass(frozen=True)
class SourceLocation:
    """A location in a file (line and column from 1), or in an override, which has neither."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        source = escape_control_chars(self.source)
        return source if self.line is None else f"{source}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Diagnostic:
    """One thing that is wrong. `path` is the key it leaves without a value, for which no more is reported."""

    message: str
    place: SourceLocation
    hint: str | None = None
    path: KeyPath | None = None


def to_error(name: str, problems: Sequence[Diagnostic]) -> RequestError:
    """The error that reports `problems` of the config `name`, in the order of their places."""
    if len(problems) == 1:
        (problem,) = problems
        return RequestError(escape_control_chars(problem.message), where=str(problem.place), hint=problem.hint)
    lines = [_line(problem) for problem in sorted(problems, key=_order)]
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"... and {len(lines) - SHOWN} more"]
    heading = f"{escape_control_chars(name)} is not a valid config: {len(problems)} problems"
    return RequestError("\n  ".join([heading, *lines]))


def key_name(path: KeyPath) -> str:
    """The key as it is named in messages and overrides."""
    return shorten(".".join(map(str, path)), MAX_SHOWN) or "the config"


def _line(problem: Diagnostic) -> str:
    hint = f"; {problem.hint}" if problem.hint else ""
    return escape_control_chars(f"{problem.place}: {problem.message}{hint}")


def _order(problem: Diagnostic) -> tuple[bool, int, int]:
    place = problem.place
    return place.line is None, place.line or 0, place.column or 0
