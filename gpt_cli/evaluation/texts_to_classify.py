"""Read texts to classify, and their labels if there are any, from CSV, JSON lines or plain lines."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpt_cli.corpus.readers import inner_suffix
from gpt_cli.corpus.record_errors import MissingKeyError
from gpt_cli.corpus.records import find_column, read_rows
from gpt_cli.corpus.small_file import file_name, json_objects, numbered_lines, read_small_file
from gpt_cli.errors import RequestError, UserError

_OTHER_TABLES = (".tsv", ".json", ".parquet")
ExamplesFormat = Literal["auto", "csv", "jsonl", "lines"]


@dataclass(frozen=True)
class Example:
    """A text, its label if it is known, and its location (`file:line`), for errors."""

    text: str
    label: str | None
    where: str


def read_texts_to_classify(path: Path, format_: ExamplesFormat, text_key: str, label_key: str | None) -> list[Example]:
    """The examples of a file, or of standard input for `-`; the format auto is by suffix, else plain lines.

    CSV begins with a header row. `label_key` None: the column `label`, if there is one. Raises RequestError for a file
    that is missing, not UTF-8 or, by its suffix, of another format, and for a key of plain lines, and UserError for one
    that is not of the format.
    """
    name, suffix = file_name(path), inner_suffix(path)
    if format_ == "auto" and suffix in _OTHER_TABLES:
        advice = "write it as CSV or JSON lines"
        raise RequestError(
            f"{name} is not CSV, JSON lines or a text a line",
            hint=advice if suffix == ".parquet" else f"{advice}; --format lines takes each line for a text",
        )
    text = read_small_file(path)
    if format_ == "auto":
        format_ = {".csv": "csv", ".jsonl": "jsonl"}.get(suffix, "lines")  # type: ignore[assignment]
    if format_ == "lines" and (label_key is not None or text_key != "text"):
        option = "--text-key" if label_key is None else "--label-key"
        raise RequestError(f"{option} is for CSV and JSON lines", hint="say which with --format")
    read = {"csv": _from_csv, "jsonl": _from_json, "lines": _from_lines}[format_]
    examples = list(read(text, name, text_key, label_key))
    if not examples:
        raise UserError("there are no texts to classify", where=name)
    return examples


def _from_lines(text: str, name: str, _text_key: str, _label_key: str | None) -> Iterator[Example]:
    return (Example(line, None, location) for location, line in numbered_lines(text, name))


def _from_csv(text: str, name: str, text_key: str, label_key: str | None) -> Iterator[Example]:
    rows = read_rows(name, [text])
    _, names = next(rows, ("", []))
    if not names:
        return
    text_column = _column(name, names, text_key, "--text-key ", None)
    labelled = label_key is not None or "label" in names
    label_column = _column(name, names, label_key or "label", "--label-key ", text_key) if labelled else None
    for location, row in rows:
        if len(row) <= max(text_column, label_column or 0):
            raise UserError(f"this row has {len(row)} columns, too few", where=location)
        yield Example(row[text_column], None if label_column is None else row[label_column], location)


def _column(name: str, names: list[str], key: str, option: str, unlike: str | None) -> int:
    try:
        return find_column(name, key, names)
    except MissingKeyError as error:
        error.suggest(option, unlike=unlike)
        raise


def _from_json(text: str, name: str, text_key: str, label_key: str | None) -> Iterator[Example]:
    try:
        objects = list(json_objects(text, name, text_key))
    except MissingKeyError as error:
        error.suggest("--text-key ")
        raise
    for location, value in objects:
        if label_key is not None and label_key not in value:
            hint = f"its keys are: {', '.join(value)[:200]}; choose one with --label-key"
            raise UserError(f"there is no key '{label_key}'", where=location, hint=hint)
        label = value.get(label_key or "label")
        if not isinstance(label, str | int | None) or (label is None and label_key is not None):
            raise UserError(f"the key {label_key or 'label'} must be a text or a whole number", where=location)
        yield Example(value[text_key], json.dumps(label) if isinstance(label, int) else label, location)
