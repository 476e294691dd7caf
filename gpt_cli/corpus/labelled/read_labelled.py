"""Read texts and their labels: from two keys of records, or from files in one folder per label."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.readers import ReaderOptions, inner_suffix, is_table
from gpt_cli.corpus.record_errors import MissingKeyError, is_no_text
from gpt_cli.corpus.sources import find_files, find_path, how_to_make_lines
from gpt_cli.errors import Notify, UserError
from gpt_cli.terminal.escape import escape_control_chars

_MAX_LABEL = 200
_LABEL_NAMES = ("label", "class", "category", "sentiment", "target", "rating", "intent", "topic")
_KINDS = {str: "a text", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text and its label; `where` is its location (`file:line`), for messages."""

    where: str
    text: str
    label: str
    is_record: bool = True
    """False for a file whose folder is its label."""


def read_labelled(source: str, data: DataConfig, note: Notify) -> Iterator[LabelledText]:
    """The texts of `source` in order.

    Raises as reading does, and UserError, with its location, for an empty text, a label that is missing, empty or too
    long, and labels of different types.
    """
    first: tuple[str, type] | None = None
    labels: dict[str, str] = {}
    for location, label in _labels(source, data, note):
        if first is None:
            first = location, type(label)
        elif type(label) is not first[1]:
            raise UserError(
                f"this label is {_KINDS[type(label)]}; that of {first[0]} is {_KINDS[first[1]]}",
                where=location,
                hint="write all labels in one type",
            )
        labels[location] = _label_text(label, location)
    for file in find_files(source, ReaderOptions(data.encoding, data.text_key), lambda _: None):
        is_record = is_table(Path(file.name))
        for location, pieces in file.read(lambda _: None):  # notes were given with the labels
            text = b"".join(pieces).decode()
            if is_record and location not in labels:
                raise UserError(f"there is no label in the column '{data.label_key}'", where=location)
            if not text.strip():
                raise _empty_text_error(location)
            yield LabelledText(location, text, labels.pop(location), is_record)
    if labels:  # readers skip empty texts
        raise _empty_text_error(next(iter(labels)))


def _labels(source: str, data: DataConfig, note: Notify) -> Iterator[tuple[str, str | int | bool]]:
    """Yield (location, label) for each text."""
    for file in find_files(source, ReaderOptions(data.encoding, data.label_key, labels=True), note):
        path = Path(file.name)
        suffix = inner_suffix(path)
        if not is_table(path):
            if suffix in (".tsv", ".json") and find_path(source) == path:
                raise UserError(
                    f"{path} is {suffix[1:].upper()}, and labels are read from .jsonl, .csv and .parquet",
                    hint=how_to_make_lines(path) if suffix == ".json" else "write it anew with commas between columns",
                )
            folder = path.absolute().parent.name
            if not path.exists() or not folder:
                raise UserError(
                    f"{file.name} has no labels",
                    hint="labels are read from .jsonl, .csv and .parquet, or are the names of folders of text files",
                )
            yield file.name, folder
            continue
        try:
            for location, pieces in file.read(note):
                text = b"".join(pieces).decode()
                yield location, json.loads(text) if suffix == ".jsonl" else text
        except MissingKeyError as error:
            _suggest_label(error, data.text_key)
            raise


def _suggest_label(error: MissingKeyError, text_key: str) -> None:
    """Have the hint suggest a label: what is called like one, else the last that is no number or date."""
    has_text = text_key in error.available
    text = text_key if has_text else min(error.candidates, key=is_no_text, default="")
    others = [name for name in error.available if name in error.candidates and name != text]
    if not others:
        error.suggest("data.label_key=", unlike=text_key)
        return
    likely = [name for name in others if not is_no_text(name)] or others
    label = next((name for name in others if name.strip().casefold() in _LABEL_NAMES), likely[-1])
    of_label = f"data.label_key={quote(label)}"
    error.advise(f"choose one: {of_label}" if has_text else f"such as data.text_key={quote(text)} {of_label}")


def _label_text(label: str | int | bool, location: str) -> str:
    text = label if isinstance(label, str) else json.dumps(label)
    if not text.strip():
        raise UserError("the label is empty", where=location)
    if len(text) > _MAX_LABEL:
        escaped = escape_control_chars(text[:40])
        raise UserError(
            f"the label '{escaped}...' has {len(text):,} characters: more than {_MAX_LABEL}",
            where=location,
            hint="write the name of a class under this key, or name another: data.label_key=KEY",
        )
    return text


def _empty_text_error(location: str) -> UserError:
    return UserError("the text is empty, so there is nothing to classify", where=location, hint="leave such texts out")
