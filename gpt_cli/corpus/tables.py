"""Records of delimited tables, CSV and TSV."""

import csv
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Literal

from gpt_cli.corpus.decoding import decode_utf8
from gpt_cli.corpus.records import (
    LONGEST_RECORD,
    ONLY_RETURNS,
    Record,
    check_length,
    peek,
    split_lines,
    twice_error,
)
from gpt_cli.corpus.stored_file import StoredFile, inner_suffix
from gpt_cli.errors import Notify, UserError


def read_table(file: StoredFile, keys: Collection[str], encoding: str, note: Notify) -> Iterator[Record]:
    """The rows of a delimited table under its header row; empty rows are skipped.

    Columns are separated by commas, semicolons, tabs or bars, whichever the header row has most of. The values of
    TSV stand as they are; others may be quoted. A carriage return ends lines where no line feed does, which is noted.

    Raises UserError for what is no such table, for one of `keys` in two columns, and for a row with more columns than
    the header row, or that is too long.
    """
    name, is_tsv = str(file.path), inner_suffix(file.path) == ".tsv"
    head, pieces = peek(decode_utf8(file.pieces(), name, encoding, note), 1)
    newline = b"\r" if b"\r" in head[:-1] and b"\n" not in head else b"\n"
    if newline == b"\r":
        note(f"{name}: {ONLY_RETURNS}")
    first = re.sub(rb'"[^"]*"', b"", next((line for line in head.split(newline) if line.strip(b"\r")), b"")).decode()
    delimiter = "\t" if is_tsv else max(",;\t|", key=first.count)
    quoting: Literal[0, 3] = csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL
    csv.field_size_limit(LONGEST_RECORD)
    lines = _RowLines(name, split_lines(name, pieces, newline))
    rows = csv.reader(lines, strict=True, delimiter=delimiter, quoting=quoting)
    header: list[str] = []
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"this is no such table: {error}", where=f"{name}:{lines.number}") from error
        if row and not header:
            header = row
            if twice := next((key for key in keys if header.count(key) > 1), None):
                raise twice_error(f"{name} has {header.count(twice)} columns '{twice}'")
        elif row:
            where = f"{name}:{lines.number}"
            # Of a text that a comma divides, only the beginning would be read.
            if any(cell.strip() for cell in row[len(header) :]):
                raise UserError(
                    f"this row has {len(row)} columns, and the first row {len(header)}: a value that contains"
                    f" {delimiter!r} must be quoted",
                    where=where,
                )
            yield Record(where, dict(zip(header, row, strict=False)))
        lines.begin_row()


class _RowLines(Iterator[str]):
    """The lines of a table, of which those of one row are bounded together."""

    def __init__(self, name: str, lines: Iterable[tuple[int, bytes]]) -> None:
        self._name, self._lines = name, iter(lines)
        self.number = 0
        """Number of the line that was read last."""
        self.begin_row()

    def begin_row(self) -> None:
        """Start another row."""
        self._start, self._size = self.number + 1, 0

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        self._size += len(line) + 1
        check_length(self._size, "row", self._name, self._start)
        return line.decode() + "\n"
