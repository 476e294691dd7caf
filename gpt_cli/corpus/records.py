"""Records, read one at a time, and those of JSON; the memory for one is bounded."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gpt_cli.errors import Notify, UserError
from gpt_cli.files.durable import CHUNK
from gpt_cli.terminal.words import format_size

Stream = tuple[str, Iterable[bytes]]
"""A document: its name for messages, and its text in UTF-8, in pieces of whole characters."""

LONGEST_RECORD = 16 << 20  # bytes of a JSON value or a table's value, characters of a row: it is held in memory
MAX_EMPTY_RECORDS = 5_000_000  # records without text, one after the other
MAX_STRUCTURE = 4 << 20  # bytes of a JSON value outside its strings: an empty list of 3 bytes takes 80
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'  # or the beginning of one, at the end
_RECORD_KEYS: Mapping[type, str] = {dict: "", str: "text", list: "messages"}
"""The types of a record; the key of what is no object."""
_BETWEEN = re.compile(r"[\s,]*")  # values that follow each other
_HEAD = 1 << 20  # bytes at the beginning of a file by which its form is known
ONLY_RETURNS = "its lines end in a carriage return alone"
_LISTED = 200  # characters of the keys in a message


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON object or a row of a table; `where` is its location (`file:line`), for messages."""

    where: str
    values: Mapping[str, Any]


class MissingKeyError(UserError):
    """A record has no value that can be read under the key that was asked for."""

    def __init__(self, key: str, option: str, record: Record, kind: str = "text") -> None:
        """`option` is the key of a config that names `key`; `kind` is what is read under it."""
        self.key, self.option, names = key, option, list(map(str, record.values))
        found = record.values.get(key)
        instead = "" if found is None else f": it is {_name_of_type(found)}"
        listed = f"; keys: {', '.join(names)[:_LISTED]}" if names else ""
        texts = [name for name, value in record.values.items() if isinstance(value, str)]
        super().__init__(
            f"no {kind} under the key '{key}'{instead}{listed}",
            where=record.where,
            kind="set" if names else None,
            keys=[option],
            choices=texts or ["KEY"],
        )


def _name_of_type(value: Any) -> str:
    names = {
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)


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

    Raises MissingKeyError for a record without that key, and UserError for MAX_EMPTY_RECORDS consecutive empty ones.
    """
    empty = nulls = 0
    for record in records:
        if text := take_text(record, key, "data.text_key"):
            empty = 0
            yield record.where, [encode_text(text, record.where)]
            continue
        nulls += record.values[key] is None
        empty += 1
        if empty > MAX_EMPTY_RECORDS:
            raise UserError(f"{name} has more than {MAX_EMPTY_RECORDS:,} records without text, one after the other")
    if nulls:
        of = "1 record" if nulls == 1 else f"{nulls:,} records"
        note(f"{name}: there is nothing (null) under the key '{key}' of {of}")


def encode_text(text: str, location: str) -> bytes:
    """`text` in UTF-8. Raises UserError for a lone surrogate, which JSON can spell."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the text holds half a surrogate pair at character {error.start:,}", where=location) from error


def read_json(name: str, pieces: Iterable[bytes], keys: Collection[str], note: Notify) -> Iterator[Record]:
    """The records of JSON lines, of one JSON list, or of JSON values that follow each other over several lines.

    `pieces`: UTF-8. `keys` may not be repeated in a record. A list in place of a record is one of `messages`, and a
    string one of `text`. Raises UserError for other values, malformed JSON, and values longer than LONGEST_RECORD.
    """
    head, pieces = _peek(pieces)
    is_lines = _begins_with_line(head)
    if b"\r" in head and b"\n" not in head:
        note(f"{name}: {ONLY_RETURNS}")
    values = _read_lines(name, pieces) if is_lines else _read_values(name, (piece.decode() for piece in pieces))
    kind: type | None = None  # of the first record
    for location, value, text in values:
        kind = kind or type(value)
        if kind is not type(value) or kind not in _RECORD_KEYS:
            there = f", and the first record is {_name_of_type(kind())}" if kind in _RECORD_KEYS else ""
            raise UserError(f"this is {_name_of_type(value)}, no JSON object{there}", where=location)
        if not isinstance(value, dict):
            yield Record(location, {_RECORD_KEYS[kind]: value})
            continue
        for key in keys:
            if text.count(f'"{key}"') > 1 and (times := _keys(text).count(key)) > 1:
                raise twice_error(f"this record has the key '{key}' {times} times", location)
        yield Record(location, value)


def _read_lines(name: str, pieces: Iterable[bytes]) -> Iterator[tuple[str, Any, str]]:
    """Yield (location, value, its JSON) for JSON lines."""
    for number, line in iter_lines(name, pieces):
        location, text = f"{name}:{number}", line.decode()
        yield location, parse_json_line(text, location), text


def _peek(pieces: Iterable[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """(the beginning, with the first line that is not blank or at least _HEAD bytes; all of the pieces)."""
    pieces, head = iter(pieces), b""
    for piece in pieces:
        head += piece
        if len(head) >= _HEAD or b"\n" in head.lstrip():
            break
    return head, chain([head] if head else [], pieces)


def _begins_with_line(head: bytes) -> bool:
    """True if the first line is a record by itself."""
    line, newline, rest = head.lstrip().partition(b"\n")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        # A line that is not JSON at all, or is longer than the head, is a line of its own.
        return not line.startswith((b"{", b"[")) or (not newline and len(head) >= _HEAD and line.startswith(b"{"))
    is_list = isinstance(value, list) and not is_chat(value)
    return not (is_list and not rest.strip())


def _keys(text: str) -> list[str]:
    """The keys of a JSON object, as often as they are written."""
    keys: list[str] = json.loads(text, object_pairs_hook=lambda pairs: [key for key, _ in pairs])
    return keys


def twice_error(message: str, where: str | None = None) -> UserError:
    """The error for a key or a column that is there twice."""
    return UserError(f"{message}: which one is meant?", where=where, hint="rename one of them, or leave it out")


def is_chat(value: Any) -> bool:
    """True for a list of messages with the keys role and content, or from and value, as ShareGPT writes them."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(m, dict) and ({"role", "content"} <= m.keys() or {"from", "value"} <= m.keys()) for m in value
        )
    )


def parse_json_line(line: str, location: str) -> Any:
    """The value of a line of JSON. Raises UserError for malformed JSON, or too much of it outside strings."""
    check_structure(line, location)
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        hint = "mend this line, or leave it out"
        raise UserError(f"this line is not JSON: {error}", where=location, hint=hint) from error


def check_structure(text: str, location: str) -> None:
    """Raise UserError for JSON with more than MAX_STRUCTURE outside its strings, white space apart."""
    if len(text) > MAX_STRUCTURE and len(re.sub(r"\s+", "", re.sub(_STRING, '""', text))) > MAX_STRUCTURE:
        raise UserError(
            f"this record has more than {format_size(MAX_STRUCTURE)} of JSON besides its strings, the most that is"
            " read here",
            where=location,
        )


def _read_values(name: str, pieces: Iterator[str]) -> Iterator[tuple[str, Any, str]]:
    """Yield (location, value, its JSON) for the values of a JSON list, or for values that follow each other."""
    decoder = json.JSONDecoder()
    buffer, position, line = "", 0, 1
    number = last = 0  # of the values read, and the line of the last one
    is_list, is_first = False, True
    while True:
        end = _BETWEEN.match(buffer, position).end()  # type: ignore[union-attr]  # it matches nothing, too
        line += buffer.count("\n", position, end)
        position = end
        if position == len(buffer):
            if not (buffer := next(pieces, "")):
                break
            position = 0
            continue
        if is_first and buffer[position] == "[":
            is_list, is_first, position = True, False, position + 1
            continue
        is_first = False
        if is_list and buffer[position] == "]":
            is_list, position = False, position + 1
            continue
        location = f"{name}:{line}" if line > last else f"{name}:{line}, record {number + 1}"
        try:
            value, end = decoder.raw_decode(buffer, position)
        except (ValueError, RecursionError) as error:
            rest = buffer[position:]  # all of it is of this value
            check_structure(rest, location)
            if (more := _read_characters(pieces, max(len(rest) // 4, CHUNK))) and not isinstance(error, RecursionError):
                if len(rest) > LONGEST_RECORD:
                    raise _too_long_error("record", location) from error
                buffer, position = rest + more, 0
                continue
            raise UserError(f"this is not JSON: {error}", where=location) from error
        yield location, value, buffer[position:end]
        number, last = number + 1, line
        line += buffer.count("\n", position, end)
        position = end
    if is_list:
        raise UserError("this is not JSON: the list does not end", where=f"{name}:{line}")


def _read_characters(pieces: Iterator[str], size: int) -> str:
    read: list[str] = []
    while size > 0 and (piece := next(pieces, "")):
        read.append(piece)
        size -= len(piece)
    return "".join(read)


def iter_lines(name: str, pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) for the lines that are not blank; only a line feed ends a line.

    Raises UserError for one that is longer than LONGEST_RECORD.
    """
    number = 0
    parts: list[bytes] = []  # of a line that continues in the next piece
    size = 0
    for piece in pieces:
        *complete, incomplete = piece.split(b"\n")
        for line in complete:
            number += 1
            if parts:
                line = b"".join([*parts, line])
                parts, size = [], 0
            if line and not line.isspace():
                yield number, _check_line(line, len(line), f"{name}:{number}")
        if incomplete:
            size += len(incomplete)
            parts.append(_check_line(incomplete, size, f"{name}:{number + 1}"))
    if (line := b"".join(parts)) and not line.isspace():
        yield number + 1, line


def _check_line(line: bytes, size: int, location: str) -> bytes:
    if size > LONGEST_RECORD:
        raise _too_long_error("line", location)
    return line


def _too_long_error(what: str, location: str) -> UserError:
    return UserError(
        f"this {what} is longer than {format_size(LONGEST_RECORD)}, the most that is read here", where=location
    )
