"""Texts to be classified, with their labels where these are known: from CSV, JSON lines or plain lines."""

import csv
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpt_cli.errors import RequestError
from gpt_cli.files import read_file

ExamplesFormat = Literal["auto", "csv", "jsonl", "lines"]

_LIMIT = 1 << 28  # bytes of a file


@dataclass(frozen=True)
class Example:
    """A text, its label if it is known, and its place in the file, for errors."""

    text: str
    label: str | None
    where: str


def read_examples(path: Path, format_: ExamplesFormat, text_key: str, label_key: str | None) -> list[Example]:
    """The examples of a file, or of standard input for `-`; auto goes by the name, and else takes lines.

    CSV begins with the names of its columns. `label_key` None is the column `label`, if there is one. Raises
    RequestError for what is not there, not UTF-8, or not of the format.
    """
    name = "standard input" if str(path) == "-" else str(path)
    text = _read(path, name)
    if format_ == "auto":
        format_ = {".csv": "csv", ".jsonl": "jsonl"}.get(path.suffix.lower(), "lines")  # type: ignore[assignment]
    if format_ == "lines" and label_key is not None:
        raise RequestError("--label-key is for CSV and JSON lines", hint="say which with --format")
    read = {"csv": _from_csv, "jsonl": _from_json, "lines": _from_lines}[format_]
    examples = read(text, name, text_key, label_key)
    if not examples:
        raise RequestError("there are no texts to classify", where=name)
    return examples


def _read(path: Path, name: str) -> str:
    if str(path) == "-":
        if sys.stdin is None:
            raise RequestError("standard input is closed")
        data = sys.stdin.buffer.read()
    elif path.is_file():
        data = read_file(path, _LIMIT)
    else:
        raise RequestError(f"there is no file {path}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise RequestError(f"this is not UTF-8 text: byte 0x{byte:02x} at offset {error.start}", where=name) from None


def _from_lines(text: str, name: str, _text_key: str, _label_key: str | None) -> list[Example]:
    lines = text.removesuffix("\n").split("\n") if text else []
    return [Example(line.removesuffix("\r"), None, f"{name}:{number}") for number, line in enumerate(lines, start=1)]


def _from_csv(text: str, name: str, text_key: str, label_key: str | None) -> list[Example]:
    csv.field_size_limit(_LIMIT)
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    examples: list[Example] = []
    columns: tuple[int, int | None] | None = None
    try:
        for row in rows:
            where = f"{name}:{rows.line_num}"
            if not row:
                continue
            if columns is None:
                columns = _column(row, text_key, "--text-key", where), None
                if label_key is not None or "label" in row:
                    columns = columns[0], _column(row, label_key or "label", "--label-key", where)
                continue
            at, label_at = columns
            if len(row) <= max(at, label_at or 0):
                raise RequestError(f"this row has {len(row)} columns, too few", where=where)
            examples.append(Example(row[at], None if label_at is None else row[label_at], where))
    except csv.Error as error:
        raise RequestError(f"this is not CSV: {error}", where=f"{name}:{rows.line_num}") from None
    return examples


def _column(names: list[str], key: str, option: str, where: str) -> int:
    if key not in names:
        listed = ", ".join(names[:10])[:200]
        raise RequestError(
            f"there is no column '{key}'", where=where, hint=f"its columns are: {listed}; choose one with {option}"
        )
    return names.index(key)


def _from_json(text: str, name: str, text_key: str, label_key: str | None) -> list[Example]:
    examples: list[Example] = []
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{name}:{number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"not a line of JSON: {error}", where=where) from None
        if not isinstance(value, dict) or not isinstance(value.get(text_key), str):
            raise RequestError(f"a JSON object with the key {text_key}, a text, is expected", where=where)
        label = value.get(label_key or "label")
        if not isinstance(label, str | None) or (label is None and label_key is not None):
            raise RequestError(f"the key {label_key or 'label'} must be a text", where=where)
        examples.append(Example(value[text_key], label, where))
    return examples
