"""The texts of a source and their labels: under two keys of records, or files in a folder for each label."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.readers import ReaderOptions, inner_suffix
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import Notify, UserError
from gpt_cli.terminal.escape import escape_control_chars

_RECORDS = (".jsonl", ".csv", ".parquet")
_LONGEST_LABEL = 200
_KINDS = {str: "a text", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text and its label; `where` is its place, for messages."""

    where: str
    text: str
    label: str
    is_record: bool = True
    """False if it is a file, whose folder is its label."""


def read_labelled(source: str, data: DataConfig, note: Notify) -> Iterator[LabelledText]:
    """The texts of `source` in order.

    Raises what reading raises, and UserError, with its place, for an empty text, a label that is missing, empty or
    long, and labels of two types.
    """
    first: tuple[str, type] | None = None
    labels: dict[str, str] = {}
    for where, label in _labels(source, data, note):
        if first is None:
            first = where, type(label)
        elif type(label) is not first[1]:
            raise UserError(
                f"this label is {_KINDS[type(label)]}; that of {first[0]} is {_KINDS[first[1]]}",
                where=where,
                hint="write all labels in one type",
            )
        labels[where] = _checked(label, where)
    for file in find_files(source, ReaderOptions(data.encoding, data.text_key), lambda _: None):
        is_table = inner_suffix(Path(file.name)) in _RECORDS
        for where, pieces in file.read(note):
            text = b"".join(pieces).decode()
            if is_table and where not in labels:
                raise UserError(f"there is no label in the column '{data.label_key}'", where=where)
            if not text.strip():
                raise _empty(where)
            yield LabelledText(where, text, labels.pop(where), is_table)
    if labels:  # readers pass over what is empty
        raise _empty(next(iter(labels)))


def _labels(source: str, data: DataConfig, note: Notify) -> Iterator[tuple[str, str | int | bool]]:
    """The place and the label of each text."""
    for file in find_files(source, ReaderOptions(data.encoding, data.label_key, labels=True), note):
        path = Path(file.name)
        suffix = inner_suffix(path)
        if suffix not in _RECORDS:
            folder = path.absolute().parent.name
            if not path.exists() or not folder:
                raise UserError(
                    f"{file.name} has no labels",
                    hint="labels are read from .jsonl, .csv and .parquet, or are the names of folders of text files",
                )
            yield file.name, folder
            continue
        try:
            for where, pieces in file.read(note):
                said = b"".join(pieces).decode()
                yield where, json.loads(said) if suffix == ".jsonl" else said
        except UserError as error:
            if error.hint is not None and "data.text_key=" in error.hint:
                there, _, chosen = error.hint.partition("; choose one: ")
                error.hint = f"{there}; choose one: data.label_key={chosen.partition('data.text_key=')[2].rstrip(')')}"
            raise


def _checked(label: str | int | bool, where: str) -> str:
    text = label if isinstance(label, str) else json.dumps(label)
    if not text.strip():
        raise UserError("the label is empty", where=where)
    if len(text) > _LONGEST_LABEL:
        shown = escape_control_chars(text[:40])
        raise UserError(
            f"the label '{shown}...' has {len(text):,} characters: more than {_LONGEST_LABEL}",
            where=where,
            hint="data.label_key=KEY names the key of the label",
        )
    return text


def _empty(where: str) -> UserError:
    return UserError("the text is empty, so there is nothing to classify", where=where, hint="leave such texts out")
