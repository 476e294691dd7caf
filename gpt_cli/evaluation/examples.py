"""Texts to be classified, with their labels where these are known: from CSV, JSON lines or plain lines."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpt_cli.corpus.records import read_rows
from gpt_cli.corpus.small_file import file_name, json_objects, numbered_lines, read_small_file, refusing_its_form
from gpt_cli.errors import RequestError

ExamplesFormat = Literal["auto", "csv", "jsonl", "lines"]


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
    name, text = file_name(path), read_small_file(path)
    if format_ == "auto":
        format_ = {".csv": "csv", ".jsonl": "jsonl"}.get(path.suffix.lower(), "lines")  # type: ignore[assignment]
    if format_ == "lines" and label_key is not None:
        raise RequestError("--label-key is for CSV and JSON lines", hint="say which with --format")
    read = {"csv": _from_csv, "jsonl": _from_json, "lines": _from_lines}[format_]
    with refusing_its_form():
        examples = list(read(text, name, text_key, label_key))
    if not examples:
        raise RequestError("there are no texts to classify", where=name)
    return examples


def _from_lines(text: str, name: str, _text_key: str, _label_key: str | None) -> Iterator[Example]:
    return (Example(line, None, where) for where, line in numbered_lines(text, name))


def _from_csv(text: str, name: str, text_key: str, label_key: str | None) -> Iterator[Example]:
    rows = read_rows(name, [text])
    where, names = next(rows, ("", []))
    if not names:
        return
    at = _column(names, text_key, "--text-key", where)
    labelled = label_key is not None or "label" in names
    label_at = _column(names, label_key or "label", "--label-key", where) if labelled else None
    for where, row in rows:
        if len(row) <= max(at, label_at or 0):
            raise RequestError(f"this row has {len(row)} columns, too few", where=where)
        yield Example(row[at], None if label_at is None else row[label_at], where)


def _column(names: list[str], key: str, option: str, where: str) -> int:
    if key not in names:
        listed = ", ".join(names[:10])[:200]
        raise RequestError(
            f"there is no column '{key}'", where=where, hint=f"its columns are: {listed}; choose one with {option}"
        )
    return names.index(key)


def _from_json(text: str, name: str, text_key: str, label_key: str | None) -> Iterator[Example]:
    for where, value in json_objects(text, name, text_key):
        label = value.get(label_key or "label")
        if not isinstance(label, str | None) or (label is None and label_key is not None):
            raise RequestError(f"the key {label_key or 'label'} must be a text", where=where)
        yield Example(value[text_key], label, where)
