"""Files of prompts, which are read whole."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpt_cli.corpus.json_records import parse_json_line
from gpt_cli.corpus.stored_file import StoredFile, is_compressed
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import read_file
from gpt_cli.files.locations import similar_paths
from gpt_cli.terminal.words import format_size

_LIMIT = 1 << 28  # bytes


def file_name(path: Path) -> str:
    """The name of `path` in messages; `-` is standard input."""
    return "standard input" if str(path) == "-" else str(path)


def read_small_file(path: Path) -> str:
    """The text of a file, decompressed by its suffix, or of standard input for `-`.

    Raises RequestError if it is missing, a directory, too large or not UTF-8, and UserError for damaged compression.
    """
    if str(path) == "-":
        if sys.stdin is None:
            raise RequestError("standard input is closed")
        data = sys.stdin.buffer.read()
    elif path.is_dir():
        raise RequestError(f"{path} is a directory, not a file")
    elif path.exists():
        data = b"".join(_bounded(path)) if is_compressed(path) else read_file(path, _LIMIT)
    else:
        raise RequestError(f"there is no file {path}", choices=similar_paths(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        reason = f"the prompt is not UTF-8 text: byte 0x{byte:02x} at offset {error.start}"
        raise RequestError(reason, where=file_name(path)) from None


def _bounded(path: Path) -> Iterator[bytes]:
    size = 0
    for piece in StoredFile.at(path).pieces():
        if (size := size + len(piece)) > _LIMIT:
            raise RequestError(f"{path} expands to more than {format_size(_LIMIT)}")
        yield piece


@contextmanager
def as_request_error() -> Iterator[None]:
    """Raise a UserError about a file's contents as a RequestError: the command line named the file."""
    try:
        yield
    except UserError as error:
        request = RequestError(error.message)
        request.__dict__.update(vars(error))
        raise request from error


def numbered_lines(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield (location, line) for each line of `text`, without its line end."""
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        yield f"{name}:{number}", line.removesuffix("\r")


def json_objects(text: str, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location, object) for each line that is not blank. Raises UserError without a `prompt`."""
    for location, line in numbered_lines(text, name):
        if not line.strip():
            continue
        value = parse_json_line(line, location)
        record = value if isinstance(value, dict) else {}
        if not isinstance(record.get("prompt"), str):
            raise UserError("a JSON object with the key prompt, a text, is expected", where=location)
        yield location, value
