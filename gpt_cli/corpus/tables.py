"""Records of delimited tables, CSV and TSV; the memory for one row is bounded."""

import csv
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Literal

from gpt_cli.corpus.records import LONGEST_RECORD, ONLY_RETURNS, Record, twice_error
from gpt_cli.errors import Notify, UserError

MAX_DELIMITERS = 1 << 20  # of a row: a field of a byte takes 80


def read_rows(
    name: str, pieces: Iterable[str], keys: Collection[str], note: Notify, *, is_tsv: bool = False
) -> Iterator[Record]:
    """The rows of a delimited table under its header row; empty rows are skipped.

    Columns are separated by commas, semicolons, tabs or bars, whichever the header row has most of. The values of
    TSV stand as they are; others may be quoted. A carriage return ends lines where no line feed does, which is noted.

    Raises UserError for what is no such table, for one of `keys` in two columns, and for a row with more columns than
    the header row, more than LONGEST_RECORD characters, or more than MAX_DELIMITERS delimiters.
    """
    csv.field_size_limit(LONGEST_RECORD)
    lines = _RowLines(name, pieces, note)
    if (first := next(lines, None)) is None:
        return
    unquoted = re.sub('"[^"]*"', "", first)
    lines.delimiter = "\t" if is_tsv else max(",;\t|", key=unquoted.count)
    quoting: Literal[0, 3] = csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL
    rows = csv.reader(chain([first], lines), strict=True, delimiter=lines.delimiter, quoting=quoting)
    header: list[str] | None = None
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise UserError(f"this is no such table: {error}", where=f"{name}:{lines.number}") from error
        if row is None:
            return
        location = f"{name}:{lines.number}"
        if row and header is None:
            header = row
            for key in keys:
                if header.count(key) > 1:
                    raise twice_error(f"{name} has {header.count(key)} columns '{key}'")
        elif row and header is not None:
            # Of a text that a comma divides, only the beginning would be read.
            if any(cell.strip() for cell in row[len(header) :]):
                raise UserError(
                    f"this row has {len(row)} columns, and the first row {len(header)}",
                    where=location,
                    hint='a text with a comma stands in quotation marks: "one, two"',
                )
            yield Record(location, dict(zip(header, row, strict=False)))
        lines.begin_row()


class _RowLines(Iterator[str]):
    """The lines of a table; the total size of the lines of one row is bounded."""

    def __init__(self, name: str, pieces: Iterable[str], note: Notify) -> None:
        self._name, self._note = name, note
        self._lines = self._read(pieces)
        self.delimiter = ","
        self.number = 0
        """Number of the line that was read last."""
        self.begin_row()

    def begin_row(self) -> None:
        """Start another row: reset the counts of its characters and delimiters."""
        self._first = True
        self._start, self._size, self._delimiters = self.number + 1, 0, 0

    def __next__(self) -> str:
        for line in self._lines:
            self.number += 1
            if self._first and line in ("\n", "\r\n"):  # csv.reader would skip it; a kilobyte can hold a million
                self._start += 1
                continue
            self._first = False
            self._size += len(line)
            self._delimiters += line.count(self.delimiter)
            self._check(0)
            return line
        raise StopIteration

    def _read(self, pieces: Iterable[str]) -> Iterator[str]:
        parts: list[str] = []  # of a line that continues in the next piece
        size = 0
        newline: str | None = None
        for piece in pieces:
            if newline is None:
                newline = "\r" if "\r" in piece[:-1] and "\n" not in piece else "\n"
                if newline == "\r":
                    self._note(f"{self._name}: {ONLY_RETURNS}")
            *complete, incomplete = piece.split(newline)
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
        if self._size + incomplete_size > LONGEST_RECORD or self._delimiters > MAX_DELIMITERS:
            is_long = self._delimiters <= MAX_DELIMITERS
            limit = f"{LONGEST_RECORD:,} characters" if is_long else f"{MAX_DELIMITERS:,} of {self.delimiter!r}"
            raise UserError(
                f"this row has more than {limit}, the most that are read here",
                where=f"{self._name}:{self._start}",
                hint="is there a quotation mark that is never closed?" if self.number > self._start else None,
            )
