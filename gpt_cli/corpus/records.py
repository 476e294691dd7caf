"""Documents under a key of JSON lines or in a column of CSV; what one record takes is bounded."""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from shlex import quote
from typing import Any

from gpt_cli.errors import UserError
from gpt_cli.files.safe_io import format_size

Stream = tuple[str, Iterable[bytes]]
"""A document: its name for messages, and its text in UTF-8, in pieces of whole characters."""

LONGEST_RECORD = 16 << 20  # bytes of a JSON line or a table's value, characters of a CSV row: all of it is in memory
MOST_SILENCE = 5_000_000  # records without text, one after the other
_MOST_STRUCTURE = 4 << 20  # bytes of a JSON line besides what its strings say: an empty list of 3 bytes takes 80
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_MOST_COMMAS = 1 << 20  # of a CSV row: a field of a byte takes 80


def read_json_lines(
    name: str, pieces: Iterable[bytes], key: str, *, lists: bool = False, labels: bool = False
) -> Iterator[Stream]:
    """One document a line, under a key of its JSON object; blank lines and empty texts are passed over.

    `pieces`: UTF-8. `lists`: a list under the key is a document, too, its JSON. `labels`: a text, a whole number or a
    truth value is one, its JSON. Raises UserError for a line that is no
    such object, or is longer than LONGEST_RECORD, and for MOST_SILENCE lines without text.
    """
    silence = 0
    for number, line in _lines(name, pieces):
        where, said = f"{name}:{number}", line.decode()
        silence += 1
        if not said.isspace() and (data := encoded(_under_key(said, key, where, lists, labels), where)):
            silence = 0
            yield where, [data]
        check_silence(name, silence)


def read_csv(name: str, pieces: Iterable[str], key: str) -> Iterator[Stream]:
    """One document a row, in the column that the first row calls `key`; empty ones are passed over.

    Raises UserError for what is not CSV, for a row of more than LONGEST_RECORD characters or 1,048,576 commas, and for
    MOST_SILENCE rows without text.
    """
    column: int | None = None
    silence = 0
    for where, row in read_rows(name, pieces):
        silence += 1
        check_silence(name, silence)
        if column is None:
            column = find_column(name, key, row)
        elif len(row) <= column:
            raise UserError(f"this row has no column '{key}': it has {len(row)} columns", where=where)
        elif row[column]:
            silence = 0
            yield where, [row[column].encode()]


def read_rows(name: str, pieces: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The rows of CSV that are not empty, each with its place. Raises UserError for what `read_csv` refuses."""
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
            yield f"{name}:{lines.number}", row


def find_column(name: str, key: str, columns: list[str]) -> int:
    """Index of the column called `key`. Raises UserError, naming those there are."""
    if key not in columns:
        if len(columns) == 1 and (apart := next((mark for mark in ";\t|" if mark in columns[0]), None)) is not None:
            raise UserError(
                f"{name} has no commas: its columns seem to be separated by {apart!r}",
                hint="write it anew with commas between columns, as spreadsheets and csvkit do",
            )
        raise UserError(
            f"{name} has no column '{key}'",
            hint=_choose("columns", columns, columns),
        )
    return columns.index(key)


def _choose(what: str, texts: Iterable[str], every: Iterable[str]) -> str:
    """A hint which of `every` key or column may hold the text: one of `texts`."""
    every = list(every)
    listed = ", ".join(every[:10])[:200]
    if {"prompt", "completion"} <= set(every):
        listed += " (data.format=pairs trains on both)"
    first = next(iter(texts), None)
    if first is None:
        return f"none of its {what} holds a text: {listed}"
    return f"its {what} are: {listed}; choose one: --text-key {quote(first)} (data.text_key={quote(first)})"


def check_silence(name: str, records: int) -> None:
    """Raise UserError where so many records without text followed each other that there may be none."""
    if records > MOST_SILENCE:
        raise UserError(f"{name} has more than {MOST_SILENCE:,} records without text, one after the other")


def encoded(text: str, where: str) -> bytes:
    """`text` in UTF-8, if it can hold it: JSON can spell what is no Unicode text."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the text holds half a surrogate pair at character {error.start:,}", where=where) from error


def parse_json_line(line: str, where: str) -> Any:
    """The value of a line of JSON. Raises UserError for what is none, or takes too much memory besides its strings."""
    if len(line) > _MOST_STRUCTURE and len(re.sub(_STRING, '""', line)) > _MOST_STRUCTURE:
        raise UserError(
            f"this line has more than {format_size(_MOST_STRUCTURE)} of JSON besides its strings, the most that is"
            " read here",
            where=where,
        )
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"this line is not JSON: {error}", where=where) from error


def _under_key(line: str, key: str, where: str, lists: bool, labels: bool) -> str:
    value = parse_json_line(line, where)
    if labels:
        if isinstance(value, dict) and isinstance(label := value.get(key), str | int):
            return json.dumps(label, ensure_ascii=False)
        raise UserError(
            f"this line has no label under the key '{key}', a text or a whole number",
            where=where,
            hint=_choose("keys", [name for name, one in value.items() if isinstance(one, str | int)], value)
            if isinstance(value, dict) and value
            else None,
        )
    if isinstance(value, dict) and isinstance(text := value.get(key), str):
        return text
    if lists and isinstance(value, dict) and isinstance(found := value.get(key), list):
        return json.dumps(found)
    strings = [name for name, one in value.items() if isinstance(one, str)] if isinstance(value, dict) else []
    chat = next((name for name, one in value.items() if _is_chat(one)), None) if isinstance(value, dict) else None
    if chat is not None and not strings:
        raise UserError(
            f"this line is a chat of messages, with no string under the key '{key}'",
            where=where,
            hint="data.format=chat trains on the answers; else make each a text:"
            f" jq -c '{{text: ([.{chat}[].content] | join(\"\\n\"))}}' CHATS > TEXTS.jsonl",
        )
    raise UserError(
        f"this line is not a JSON object with a string under the key '{key}'",
        where=where,
        hint=_choose("keys", strings, value) if isinstance(value, dict) and value else None,
    )


def _is_chat(value: Any) -> bool:
    """True if it is a list of messages, as chat datasets have it."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and isinstance(one.get("content"), str) for one in value)
    )


def _lines(name: str, pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, ended by line feeds alone, with their numbers."""
    number = 0
    begun: list[bytes] = []  # of a line that goes on in the next piece
    size = 0
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for line in ended:
            number += 1
            if begun:
                line = b"".join([*begun, line])
                begun, size = [], 0
            if line and not line.isspace():
                yield number, _bounded(line, len(line), f"{name}:{number}")
        if rest:
            size += len(rest)
            begun.append(_bounded(rest, size, f"{name}:{number + 1}"))
    if (line := b"".join(begun)) and not line.isspace():
        yield number + 1, line


def _bounded(line: bytes, size: int, where: str) -> bytes:
    if size > LONGEST_RECORD:
        raise UserError(
            f"this line is longer than {format_size(LONGEST_RECORD)}, the most that is read here", where=where
        )
    return line


class _RowLines(Iterator[str]):
    """The lines of a text, ended by line feeds alone; those of one row are bounded together."""

    def __init__(self, name: str, pieces: Iterable[str]) -> None:
        self._name = name
        self._lines = self._read(pieces)
        self.number = 0
        """Number of the line that was read last."""
        self.begin_row()

    def begin_row(self) -> None:
        """Start another row; the one so far is whole."""
        self._first = True
        self._start, self._size, self._commas = self.number + 1, 0, 0

    def __next__(self) -> str:
        for line in self._lines:
            self.number += 1
            if self._first and line in ("\n", "\r\n"):  # no row, and said a million times in a kilobyte
                self._start += 1
                continue
            self._first = False
            self._size += len(line)
            self._commas += line.count(",")
            self._check(0)
            return line
        raise StopIteration

    def _read(self, pieces: Iterable[str]) -> Iterator[str]:
        begun: list[str] = []  # of a line that goes on in the next piece
        size = 0
        for piece in pieces:
            *ended, rest = piece.split("\n")
            for line in ended:
                if begun:
                    line = "".join([*begun, line])
                    begun, size = [], 0
                yield line + "\n"
            if rest:
                size += len(rest)
                self._check(size)
                begun.append(rest)
        if begun:
            yield "".join(begun)

    def _check(self, more: int) -> None:
        if self._size + more > LONGEST_RECORD or self._commas > _MOST_COMMAS:
            bound = f"{LONGEST_RECORD:,} characters" if self._commas <= _MOST_COMMAS else f"{_MOST_COMMAS:,} commas"
            raise UserError(
                f"this row has more than {bound}, the most that are read here",
                where=f"{self._name}:{self._start}",
                hint="is there a quotation mark that is never closed?" if self.number > self._start else None,
            )
