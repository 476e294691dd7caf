"""Documents under a key of JSON lines or in a column of CSV; the memory for one record is bounded."""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from textwrap import shorten
from typing import Any

from gpt_cli.corpus.record_errors import MissingKeyError, OtherFormatError, is_no_text
from gpt_cli.errors import UserError
from gpt_cli.files.safe_io import format_size

Stream = tuple[str, Iterable[bytes]]
"""A document: its name for messages, and its text in UTF-8, in pieces of whole characters."""

LONGEST_RECORD = 16 << 20  # bytes of a JSON line or a table's value, characters of a CSV row: it is held in memory
MAX_EMPTY_RECORDS = 5_000_000  # records without text, one after the other
MAX_STRUCTURE = 4 << 20  # bytes of a JSON line outside its strings: an empty list of 3 bytes takes 80
_ROLES = '{"human": "user", "gpt": "assistant"}'
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
MAX_COMMAS = 1 << 20  # of a CSV row: a field of a byte takes 80


def read_json_lines(
    name: str, pieces: Iterable[bytes], key: str, *, lists: bool = False, labels: bool = False
) -> Iterator[Stream]:
    """One document a line, under a key of its JSON object; blank lines and empty texts are skipped.

    `pieces`: UTF-8. `lists`: a list under the key is a document, too, as JSON. `labels`: strings, integers and booleans
    are, as JSON. Raises UserError for a line that is no such object or is longer than LONGEST_RECORD, and for
    MAX_EMPTY_RECORDS consecutive lines without text.
    """
    empty_lines, has_key = 0, False
    for number, line in _lines(name, pieces):
        location, text = f"{name}:{number}", line.decode()
        empty_lines += 1
        if not text.isspace():
            try:
                data = encode_text(_parse_record(text, key, location, lists, labels), location)
            except (MissingKeyError, OtherFormatError) as error:
                if has_key:
                    error.blame_line(key)
                raise
            has_key = True
            if data:
                empty_lines = 0
                yield location, [data]
        check_empty_records(name, empty_lines)


def read_csv(name: str, pieces: Iterable[str], key: str) -> Iterator[Stream]:
    """One document a row, from the column that the header row names `key`; empty ones are skipped.

    Raises UserError for what is not CSV, for a row with more columns than the header row, or more than LONGEST_RECORD
    characters or 1,048,576 commas, and for MAX_EMPTY_RECORDS consecutive rows without text.
    """
    column: int | None = None
    empty_rows = 0
    for location, row in _read_rows(name, pieces):
        empty_rows += 1
        check_empty_records(name, empty_rows)
        if column is None:
            column = find_column(name, key, row)
        elif len(row) <= column:
            raise UserError(f"this row has no column '{key}': it has {len(row)} columns", where=location)
        elif row[column]:
            empty_rows = 0
            yield location, [row[column].encode()]


def _read_rows(name: str, pieces: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (location, row) for the rows of CSV that are not empty, the header row first.

    Raises UserError as `read_csv` does.
    """
    width: int | None = None
    csv.field_size_limit(LONGEST_RECORD)
    lines = _RowLines(name, pieces)
    rows = csv.reader(lines, strict=True)
    while True:
        lines.begin_row()
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise UserError(f"this is not CSV: {error}", where=f"{name}:{lines.number}") from error
        if row is None:
            return
        if row:
            location = f"{name}:{lines.number}"
            width = len(row) if width is None else width
            # Of a text that a comma divides, only the beginning would be read.
            if any(cell.strip() for cell in row[width:]):
                raise UserError(
                    f"this row has {len(row)} columns, and the first row {width}",
                    where=location,
                    hint='a text with a comma stands in quotation marks: "one, two"',
                )
            yield location, row


def find_column(name: str, key: str, columns: list[str]) -> int:
    """Index of the column named `key`. Raises MissingKeyError if there is none, UserError if there are two."""
    if key not in columns:
        separators = [character for character in ";\t|" if character in columns[0]] if len(columns) == 1 else []
        if separators:
            raise UserError(
                f"{name} has no commas: its columns seem to be separated by {separators[0]!r}",
                hint="write it anew with commas between columns, as spreadsheets and csvkit do",
            )
        texts = sorted(columns, key=is_no_text)
        raise MissingKeyError(f"{name} has no column '{key}'", "columns", key, texts, columns, None)
    if columns.count(key) > 1:
        raise _twice_error(f"{name} has {columns.count(key)} columns '{key}'")
    return columns.index(key)


def _twice_error(message: str, where: str | None = None) -> UserError:
    return UserError(f"{message}: which one is meant?", where=where, hint="rename one of them, or leave it out")


def check_empty_records(name: str, records: int) -> None:
    """Raise UserError for more than MAX_EMPTY_RECORDS consecutive records without text."""
    if records > MAX_EMPTY_RECORDS:
        raise UserError(f"{name} has more than {MAX_EMPTY_RECORDS:,} records without text, one after the other")


def encode_text(text: str, location: str) -> bytes:
    """`text` in UTF-8. Raises UserError for a lone surrogate, which JSON can spell."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the text holds half a surrogate pair at character {error.start:,}", where=location) from error


def parse_json_line(line: str, location: str) -> Any:
    """The value of a line of JSON. Raises UserError for malformed JSON, or too much of it outside strings."""
    if len(line) > MAX_STRUCTURE and len(re.sub(_STRING, '""', line)) > MAX_STRUCTURE:
        raise UserError(
            f"this line has more than {format_size(MAX_STRUCTURE)} of JSON besides its strings, the most that is"
            " read here",
            where=location,
        )
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        hint = "mend this line, or leave it out"
        raise UserError(f"this line is not JSON: {error}", where=location, hint=hint) from error


def _parse_record(line: str, key: str, location: str, lists: bool, labels: bool) -> str:
    """The text under `key` of a JSON object, with `lists` or `labels` its JSON. Raises UserError for other lines."""
    value = parse_json_line(line, location)
    if _is_chat(value):
        raise UserError(
            "this line is a list of messages, not an object with one",
            where=location,
            hint="make it one of each: jq -c '{messages: .}' FILE > CHATS.jsonl",
        )
    if isinstance(value, list) and value and isinstance(value[0], dict):
        raise UserError(
            "this line is a JSON list of records, not one of them",
            where=location,
            hint="make a line of each: jq -c '.[]' FILE > RECORDS.jsonl",
        )
    record: dict[str, Any] = value if isinstance(value, dict) else {}
    if line.count(f'"{key}"') > 1 and key in record and (times := _keys(line).count(key)) > 1:
        raise _twice_error(f"this line has the key '{key}' {times} times", location)
    content = record.get(key)
    if labels:
        if isinstance(content, str | int):
            return json.dumps(content, ensure_ascii=False)
        candidates = [name for name, label in record.items() if isinstance(label, str | int)]
        message = f"this line has no label under the key '{key}', a text or a whole number"
        raise MissingKeyError(message, "keys", key, candidates, record, location, _value(record, key))
    if isinstance(content, str):
        return content
    if lists and isinstance(content, list):
        return json.dumps(content)
    if key in record and content is None:
        raise UserError(
            f"the key '{key}' of this line is null, which is no text", where=location, hint="leave such lines out"
        )
    strings = [name for name, text in record.items() if isinstance(text, str)]
    strings.sort(key=is_no_text)
    chats = [name for name, messages in record.items() if _is_chat(messages)]
    others = [name for name, messages in record.items() if _is_share_gpt(messages)]
    if others and (lists or not strings):
        raise UserError(
            f"the messages of '{others[0]}' have the keys from and value, not role and content",
            where=location,
            hint=f"jq -c '{{messages: [.{others[0]}[] | {{role: ({_ROLES}[.from] // .from), content: .value}}]}}'"
            " FILE > CHATS.jsonl",
        )
    if lists:
        message = f"this line is not a JSON object with a list of messages under the key '{key}'"
        raise MissingKeyError(message, "keys", key, chats, record, location)
    if chats and not strings:
        raise OtherFormatError(
            f"this line is a chat of messages, with no string under the key '{key}'", chats[0], where=location
        )
    message = f"this line is not a JSON object with a string under the key '{key}'"
    raise MissingKeyError(message, "keys", key, strings, record, location, _value(record, key))


def _value(record: dict[str, Any], key: str) -> str | None:
    """The value of a key as messages name it; None where the record has none."""
    if key not in record:
        return None
    value = record[key]
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return shorten(json.dumps(value), 40, placeholder="...")


def _keys(line: str) -> list[str]:
    """The keys of a JSON object, as often as they are written."""
    keys: list[str] = json.loads(line, object_pairs_hook=lambda pairs: [key for key, _ in pairs])
    return keys


def _is_share_gpt(value: Any) -> bool:
    """True for a list of messages as ShareGPT writes them."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and {"from", "value"} <= m.keys() for m in value)
    )


def _is_chat(value: Any) -> bool:
    """True for a list of messages as in chat datasets."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(message, dict)
            and "content" in message
            and ("role" in message or isinstance(message["content"], str))
            for message in value
        )
    )


def _lines(name: str, pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) for the lines that are not blank; only a line feed ends a line."""
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
        raise UserError(
            f"this line is longer than {format_size(LONGEST_RECORD)}, the most that is read here", where=location
        )
    return line


class _RowLines(Iterator[str]):
    """The lines of a CSV text, ended by line feeds alone; the total size of the lines of one row is bounded."""

    def __init__(self, name: str, pieces: Iterable[str]) -> None:
        self._name = name
        self._lines = self._read(pieces)
        self.number = 0
        """Number of the line that was read last."""
        self.begin_row()

    def begin_row(self) -> None:
        """Start another row: reset the counts of its characters and commas."""
        self._first = True
        self._start, self._size, self._commas = self.number + 1, 0, 0

    def __next__(self) -> str:
        for line in self._lines:
            self.number += 1
            if self._first and line in ("\n", "\r\n"):  # csv.reader would skip it; a kilobyte can hold a million
                self._start += 1
                continue
            self._first = False
            self._size += len(line)
            self._commas += line.count(",")
            self._check(0)
            return line
        raise StopIteration

    def _read(self, pieces: Iterable[str]) -> Iterator[str]:
        parts: list[str] = []  # of a line that continues in the next piece
        size = 0
        for piece in pieces:
            *complete, incomplete = piece.split("\n")
            for line in complete:
                if parts:
                    line = "".join([*parts, line])
                    parts, size = [], 0
                yield line + "\n"
            if incomplete:
                size += len(incomplete)
                self._check(size)
                parts.append(incomplete)
        if parts:
            yield "".join(parts)

    def _check(self, incomplete_size: int) -> None:
        if self._size + incomplete_size > LONGEST_RECORD or self._commas > MAX_COMMAS:
            limit = f"{LONGEST_RECORD:,} characters" if self._commas <= MAX_COMMAS else f"{MAX_COMMAS:,} commas"
            raise UserError(
                f"this row has more than {limit}, the most that are read here",
                where=f"{self._name}:{self._start}",
                hint="is there a quotation mark that is never closed?" if self.number > self._start else None,
            )
