"""Read texts and their labels: from two keys of records, or from files in one folder per label."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.readers import RECORD_SUFFIXES, ReaderOptions
from gpt_cli.corpus.records import MissingKeyError, encode_text, take_text
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import Notify, UserError
from gpt_cli.terminal.escape import escape_control_chars

_MAX_LABEL = 200
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
    for location, text, label, is_record in _labelled(source, data, note):
        if first is None:
            first = location, type(label)
        elif type(label) is not first[1]:
            raise UserError(
                f"this label is {_KINDS[type(label)]}; that of {first[0]} is {_KINDS[first[1]]}",
                where=location,
                hint="write all labels in one type",
            )
        written = _label_text(label, location)
        encode_text(written, location)
        if not text.strip():
            raise UserError(
                "the text is empty, so there is nothing to classify", where=location, hint="leave such texts out"
            )
        yield LabelledText(location, text, written, is_record)


def _labelled(source: str, data: DataConfig, note: Notify) -> Iterator[tuple[str, str, str | int | bool, bool]]:
    """Yield (location, text, label, whether it is a record) for each text."""
    for file in find_files(source, ReaderOptions.of(data), note):
        if file.records is not None:
            for record in file.records([data.text_key, data.label_key], note):
                text, label = take_text(record, data.text_key, "data.text_key"), record.values.get(data.label_key)
                encode_text(text, record.where)
                if not isinstance(label, str | int):
                    raise MissingKeyError(data.label_key, "data.label_key", record, "label")
                yield record.where, text, label, True
            continue
        path = Path(file.name)
        folder = path.absolute().parent.name
        if not path.exists() or not folder:
            raise UserError(
                f"{file.name} has no labels",
                hint=f"labels are read from {', '.join(RECORD_SUFFIXES)}, or are the names of folders of text files",
            )
        for location, pieces in file.read(note):
            yield location, b"".join(pieces).decode(), folder, False


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
