"""Records of JSON: lines, one list, or values that follow each other over several lines."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from gpt_cli.corpus.decoding import decode_utf8
from gpt_cli.corpus.records import (
    LONGEST_RECORD,
    ONLY_RETURNS,
    Record,
    check_length,
    is_chat,
    iter_lines,
    name_of_type,
    peek,
    twice_error,
)
from gpt_cli.corpus.stored_file import StoredFile
from gpt_cli.errors import Notify, UserError
from gpt_cli.files.durable import CHUNK

_RECORD_KEYS: Mapping[type, str] = {dict: "", str: "text", list: "messages"}
"""The types of a record; the key of what is no object."""
_BETWEEN = re.compile(r"[\s,]*")  # values that follow each other
_HEAD = 1 << 20  # bytes at the beginning of a file by which its form is known


def read_json(file: StoredFile, keys: Collection[str], _encoding: str, note: Notify) -> Iterator[Record]:
    """The records of a file of JSON, in which `keys` may not be repeated.

    A list in place of a record is one of `messages`, and a string one of `text`. Raises UserError for other values,
    malformed JSON, and values that are too long.
    """
    name = str(file.path)
    head, pieces = peek(decode_utf8(file.pieces(), name, "utf-8", note), _HEAD, b"\n")
    if b"\r" in head and b"\n" not in head:
        note(f"{name}: {ONLY_RETURNS}")
    kind: type | None = None  # of the first record
    for location, value, text in (_read_lines if _begins_with_line(head) else _read_values)(name, pieces):
        kind = kind or type(value)
        if kind is not type(value) or kind not in _RECORD_KEYS:
            there = f", and the first record is {name_of_type(kind())}" if kind in _RECORD_KEYS else ""
            raise UserError(f"this is {name_of_type(value)}, no JSON object{there}", where=location)
        for key in keys if kind is dict else ():
            if text.count(f'"{key}"') > 1 and (times := _written_keys(text).count(key)) > 1:
                raise twice_error(f"this record has the key '{key}' {times} times", location)
        yield Record(location, value if isinstance(value, dict) else {_RECORD_KEYS[kind]: value})


def parse_json_line(line: str, location: str) -> Any:
    """The value of a line of JSON. Raises UserError for malformed JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"this line is not JSON: {error}", where=location) from error


def holds_records(pieces: Iterable[bytes]) -> bool:
    """True for JSON that is a list, or objects that follow each other; one object is a text, such as settings."""
    data = bytearray()
    for piece in pieces:
        data += piece
        head = data.decode(errors="replace").removeprefix("\ufeff").lstrip()
        if not head.startswith("{"):
            return head.startswith("[")
        with suppress(ValueError, RecursionError):
            _, end = json.JSONDecoder().raw_decode(head)
            return head[end:].lstrip().startswith("{")
        if len(data) > LONGEST_RECORD:
            break
    return False


def _read_lines(name: str, pieces: Iterable[bytes]) -> Iterator[tuple[str, Any, str]]:
    """Yield (location, value, its JSON) for JSON lines."""
    for number, line in iter_lines(name, pieces):
        location, text = f"{name}:{number}", line.decode()
        yield location, parse_json_line(text, location), text


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


def _written_keys(text: str) -> list[str]:
    """The keys of a JSON object, as often as they are written."""
    keys: list[str] = json.loads(text, object_pairs_hook=lambda pairs: [key for key, _ in pairs])
    return keys


def _read_values(name: str, data: Iterable[bytes]) -> Iterator[tuple[str, Any, str]]:
    """Yield (location, value, its JSON) for the values of a JSON list, or for values that follow each other."""
    decoder, pieces = json.JSONDecoder(), (piece.decode() for piece in data)
    buffer, position, line = "", 0, 1
    number = last = 0  # of the values read, and the line of the last one
    opens, is_list = True, False
    while True:
        end = _BETWEEN.match(buffer, position).end()  # type: ignore[union-attr]  # it matches nothing, too
        line, position = line + buffer.count("\n", position, end), end
        if position == len(buffer):
            if not (buffer := next(pieces, "")):
                break
            position = 0
        elif buffer[position] == ("[" if opens else "]" if is_list else ""):
            opens, is_list, position = False, opens, position + 1
        else:
            opens = False
            place = f"{line}" if line > last else f"{line}, record {number + 1}"
            try:
                value, end = decoder.raw_decode(buffer, position)
            except (ValueError, RecursionError) as error:
                buffer, position = buffer[position:], 0  # all of it is of this value
                check_length(len(buffer), "record", name, place)
                more = "" if isinstance(error, RecursionError) else _read(pieces, max(len(buffer) // 4, CHUNK))
                if not more:
                    raise UserError(f"this is not JSON: {error}", where=f"{name}:{place}") from error
                buffer += more
                continue
            yield f"{name}:{place}", value, buffer[position:end]
            number, last = number + 1, line
            line, position = line + buffer.count("\n", position, end), end
    if is_list:
        raise UserError("this is not JSON: the list does not end", where=f"{name}:{line}")


def _read(pieces: Iterator[str], size: int) -> str:
    """At least `size` more characters, if there are so many."""
    read: list[str] = []
    while size > 0 and (piece := next(pieces, "")):
        read.append(piece)
        size -= len(piece)
    return "".join(read)
