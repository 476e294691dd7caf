"""A file of texts that is small enough to be read whole: what the command line names beside a corpus."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpt_cli.corpus.records import parse_json_line
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import read_file

_LIMIT = 1 << 28  # bytes


def file_name(path: Path) -> str:
    """Name for messages; `-` is standard input."""
    return "standard input" if str(path) == "-" else str(path)


def read_small_file(path: Path, what: str = "this") -> str:
    """The text of a file, or of standard input for `-`. Raises RequestError for none, and where `what` is not UTF-8."""
    if str(path) == "-":
        if sys.stdin is None:
            raise RequestError("standard input is closed")
        data = sys.stdin.buffer.read()
    elif path.exists():
        data = read_file(path, _LIMIT)
    else:
        raise RequestError(f"there is no file {path}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        message = f"{what} is not UTF-8 text: byte 0x{byte:02x} at offset {error.start}"
        raise RequestError(message, where=file_name(path)) from None


@contextmanager
def refusing_its_form() -> Iterator[None]:
    """Turn a UserError about what the file holds into a RequestError: it was named by the command line."""
    try:
        yield
    except UserError as error:
        raise RequestError(error.message, where=error.where, hint=error.hint) from error


def numbered_lines(text: str, name: str) -> Iterator[tuple[str, str]]:
    """(place, line) of each line of `text`, without its end."""
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        yield f"{name}:{number}", line.removesuffix("\r")


def json_objects(text: str, name: str, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line that is not blank. Raises UserError unless the `key` of each is a text."""
    for where, line in numbered_lines(text, name):
        if not line.strip():
            continue
        value = parse_json_line(line, where)
        if not isinstance(value, dict) or not isinstance(value.get(key), str):
            raise RequestError(f"a JSON object with the key {key}, a text, is expected", where=where)
        yield where, value
