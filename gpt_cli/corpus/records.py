"""Records and lines, read one at a time; each is held in memory, so its length is bounded."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gpt_cli.errors import Notify, UserError
from gpt_cli.terminal.words import format_size

Stream = tuple[str, Iterable[bytes]]
"""A document: its name for messages, and its text in UTF-8, in pieces of whole characters."""

LONGEST_RECORD = 16 << 20  # bytes of a line, a row, a JSON value or a value of a table
ONLY_RETURNS = "its lines end in a carriage return alone"
_LISTED = 200  # characters of the keys in a message
_USUAL = {"text", "label", "prompt", "completion", "messages"}  # names that another key of the config has by default
_NAMES = {str: "a text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON object or a row of a table; `where` is its location (`file:line`), for messages."""

    where: str
    values: Mapping[str, Any]


class MissingKeyError(UserError):
    """A record has no value that can be read under the key that was asked for."""

    def __init__(self, key: str, option: str, record: Record, kind: str = "text") -> None:
        """`option` is the key of a config that names `key`; `kind` is what is read under it."""
        names = list(map(str, record.values))
        found = record.values.get(key)
        instead = "" if found is None else f": it is {name_of_type(found)}"
        listed = f"; keys: {', '.join(names)[:_LISTED]}" if names else ""
        texts = {name: len(value) for name, value in record.values.items() if isinstance(value, str)}
        free = sorted(texts.keys() - _USUAL, key=lambda name: (-texts[name], names.index(name)))
        super().__init__(
            f"no {kind} under the key '{key}'{instead}{listed}",
            where=record.where,
            kind="set" if free and kind == "text" else None,
            keys=[option],
            choices=free,
        )


def name_of_type(value: Any) -> str:
    """The type of a value of a record, in words."""
    return _NAMES.get(type(value), type(value).__name__)


def take_text(record: Record, key: str, option: str) -> str:
    """The text under `key` of a record, empty for null. Raises MissingKeyError where there is none."""
    text = record.values.get(key)
    if isinstance(text, str):
        return text
    if text is None and key in record.values:
        return ""
    raise MissingKeyError(key, option, record)


def read_texts(records: Iterable[Record], name: str, key: str, note: Notify) -> Iterator[Stream]:
    """A document for each record, the text under `key`; empty ones are skipped, and a note counts the nulls.

    Raises MissingKeyError for a record without that key.
    """
    nulls = 0
    for record in records:
        if text := take_text(record, key, "data.text_key"):
            yield record.where, [encode_text(text, record.where)]
        else:
            nulls += record.values[key] is None
    if nulls:
        of = "1 record" if nulls == 1 else f"{nulls:,} records"
        note(f"{name}: there is nothing (null) under the key '{key}' of {of}")


def encode_text(text: str, location: str) -> bytes:
    """`text` in UTF-8. Raises UserError for a lone surrogate, which JSON can spell."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the text holds half a surrogate pair at character {error.start:,}", where=location) from error


def check_length(size: int, kind: str, name: str, number: int | str) -> None:
    """Raise UserError if the `size` in bytes of a `kind`, such as the line `number` of a file, is above the bound."""
    if size > LONGEST_RECORD:
        raise UserError(
            f"this {kind} is longer than {format_size(LONGEST_RECORD)}, the limit", where=f"{name}:{number}"
        )


def twice_error(message: str, where: str | None = None) -> UserError:
    """The error for a key or a column that is there twice."""
    return UserError(f"{message}: which one is meant?", where=where)


def is_chat(value: Any) -> bool:
    """True for a list of messages with the keys role and content, or from and value, as ShareGPT writes them."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(m, dict) and ({"role", "content"} <= m.keys() or {"from", "value"} <= m.keys()) for m in value
        )
    )


def peek(pieces: Iterable[bytes], size: int, end: bytes = b"") -> tuple[bytes, Iterator[bytes]]:
    """(at least the first `size` bytes, fewer if they contain `end` after white space; all of the pieces)."""
    pieces, head = iter(pieces), b""
    for piece in pieces:
        head += piece
        if len(head) >= size or (end and end in head.lstrip()):
            break
    return head, chain([head] if head else [], pieces)


def split_lines(name: str, pieces: Iterable[bytes], newline: bytes = b"\n") -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) for every line, without its `newline`. Raises UserError as `check_length` does."""
    number, rest = 1, bytearray()
    for piece in pieces:
        *lines, last = piece.split(newline)
        for line in lines:
            if rest:
                line = bytes(rest + line)
                rest.clear()
            check_length(len(line), "line", name, number)
            yield number, line
            number += 1
        rest += last
        check_length(len(rest), "line", name, number)
    if rest:
        yield number, bytes(rest)


def iter_lines(name: str, pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) as `split_lines` does for the lines that are not blank."""
    return ((number, line) for number, line in split_lines(name, pieces) if line and not line.isspace())
