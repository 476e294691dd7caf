"""Output of a verb: data on stdout, everything else on stderr, nothing that could drive a terminal."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gpt_cli.errors import UsageError
from gpt_cli.terminal.escape import escape_control_chars

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
PictureOption = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="A .png, .svg or .pdf.")]
PageOption = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="An .html file.")]

_LISTED = 10  # characters that a note spells out


def note(text: str) -> None:
    """Print `text` to stderr. A reader, terminal or disk that is gone loses the message, never the work."""
    try:
        print(escape_control_chars(text, keep="\n"), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr.fileno())


def list_characters(characters: list[str]) -> str:
    """Characters in quotes; of many the first ones, and how many more there are."""
    listed = ", ".join(f"'{escape_control_chars(character)}'" for character in characters[:_LISTED])
    return listed if len(characters) <= _LISTED else f"{listed}, and {len(characters) - _LISTED} more"


def refuse_several(given: Mapping[str, bool]) -> None:
    """Raise RequestError if more than one of these options, which exclude each other, is given."""
    if len(names := [option for option, is_given in given.items() if is_given]) > 1:
        raise UsageError(f"give {names[0]} or {names[1]}, not both")


def print_json(value: Any) -> None:
    """Print `value` as one strict JSON object on stdout, in ASCII, which every terminal can show.

    Paths become strings. Raises ValueError for NaN and infinities, which JSON does not have.
    """
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, indent=indent, allow_nan=False, default=os.fspath), flush=True)


def write_text(text: str, raw: bool = False) -> None:
    """Write text of unknown origin to stdout, at once, so that it streams.

    Where stdout is a terminal, characters that could drive it are made visible, unless `raw`.
    """
    if sys.stdout.isatty() and not raw:
        text = escape_control_chars(text, keep="\n\t")
    sys.stdout.write(text)
    sys.stdout.flush()


def discard(descriptor: int) -> None:
    """Point a standard stream at the null device: what is buffered for it is dropped."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
