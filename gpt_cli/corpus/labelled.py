"""Texts with a label each: read from records or folders, divided label by label, and encoded.

Equal texts are in one split, and no label is guessed. Shapes: E texts, N tokens of all of them together.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.blocks import Split
from gpt_cli.corpus.divide import EncodedTexts, Prepared, divide, encode_member, join_ids, learn_from_divided
from gpt_cli.corpus.readers import RECORD_SUFFIXES, ReaderOptions
from gpt_cli.corpus.records import MissingKeyError, encode_text, take_text
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import ErrorKind, Notify, UserError
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import Tokenizer

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


@dataclass(frozen=True, eq=False)
class LabelledTexts(EncodedTexts):
    """The texts of a split."""

    source: Sequence[LabelledText]
    """(E,) the texts that were encoded."""


def prepare_labelled(data: DataConfig, config: TokenizerConfig, note: Notify) -> Prepared[LabelledTexts]:
    """Read, divide and encode the labelled texts of a config.

    Raises as reading and `train_tokenizer` do, UserError, with its location, for a label with too few texts, and
    UnknownCharacters for characters that are not in the vocabulary.
    """
    division = divide_labelled(data, note)
    tokenizer = learn_from_labelled(division[0], config, note)
    return Prepared.of(division, tokenizer, lambda texts: encode_labelled(tokenizer, texts))


def divide_labelled(data: DataConfig, note: Notify) -> tuple[dict[Split, list[LabelledText]], str]:
    """Return the texts of each split, and the fingerprint of all. Raises as `prepare_labelled` does."""
    splits, fingerprint = divide(
        data,
        lambda source: read_labelled(source, data, note),
        lambda text: (text.text, text.label),
        lambda texts, val_fraction, test_fraction: assign_by_label(texts, val_fraction, test_fraction, data.split_seed),
    )
    labels = {text.label for text in splits["train"]}
    if unseen := next((text for text in splits["val"] if text.label not in labels), None):
        message = f"no training text has the label '{_shown(unseen)}'"
        kind: ErrorKind | None = "set" if data.val_source else None
        raise UserError(
            message, where=unseen.where, kind=kind, keys=["data.val_source"], choices=["null"] if kind else []
        )
    alike: dict[str, list[str]] = {}
    for label in sorted(labels):
        alike.setdefault("".join(label.split()).casefold(), []).append(label)
    if group := next((group for group in alike.values() if len(group) > 1), None):
        note(f"{' and '.join(map(repr, group))} are different labels, which differ only in spaces or capitals")
    return splits, fingerprint


def assign_by_label(
    texts: Sequence[LabelledText], val_fraction: float, test_fraction: float, seed: int
) -> npt.NDArray[np.int64]:
    """Return (E,) the index into SPLITS of each text: about these fractions of each label, at least one text in each.

    The order is that of a hash of text and `seed`, so equal texts are in one split, and the order of texts in the
    source does not matter. Raises UserError, with its location, for a label with too few different texts.
    """
    _check_labels(texts)
    by_text: dict[str, list[int]] = {}  # indices of equal texts
    for number, text in enumerate(texts):
        by_text.setdefault(text.text, []).append(number)
    by_label: dict[str, list[tuple[bytes, list[int]]]] = {}
    for content, numbers in by_text.items():  # equal texts with different labels count for the label of the first
        key = hashlib.sha256(f"{seed}\0{content}".encode()).digest()
        by_label.setdefault(texts[numbers[0]].label, []).append((key, numbers))
    units = np.zeros(len(texts), dtype=np.int64)
    for groups in by_label.values():
        if len(groups) < 1 + (val_fraction > 0) + (test_fraction > 0):
            text = texts[groups[0][1][0]]
            different = plural(len(groups), "different text")
            raise _label_error(f"the label '{_shown(text)}' has {different}; each split needs one", text)
        groups.sort()
        tests = max(1, round(test_fraction * len(groups))) if test_fraction else 0
        validates = max(1, round(val_fraction * len(groups))) if val_fraction else 0
        validates = min(validates, len(groups) - tests - 1)
        for rank, (_, numbers) in enumerate(groups[: tests + validates]):
            units[numbers] = 2 if rank < tests else 1
    return units


def _check_labels(texts: Sequence[LabelledText]) -> None:
    """Raise UserError if all texts have the same label, or a label occurs only once."""
    counts = Counter(text.label for text in texts)
    if len(counts) == 1:
        raise _label_error(f"the only label is '{_shown(texts[0])}': there is nothing to tell apart", texts[0])
    if singles := [text for text in texts if counts[text.label] == 1]:
        number = f"{len(singles):,} of {plural(len(counts), 'label')} occur" + "s" * (len(singles) == 1)
        raise _label_error(f"{number} only once, such as '{_shown(singles[0])}'", singles[0])


def _label_error(message: str, text: LabelledText) -> UserError:
    if not text.is_record:
        return UserError(message, where=text.where)
    return UserError(message, where=text.where, kind="set", keys=["data.label_key"], choices=["KEY"])


def learn_from_labelled(splits: dict[Split, list[LabelledText]], config: TokenizerConfig, note: Notify) -> Tokenizer:
    """Learn the tokenizer of a config; BPE from the training texts."""
    return learn_from_divided(splits, lambda: (text.text for text in splits["train"]), config, note)


def encode_labelled(tokenizer: Tokenizer, texts: Sequence[LabelledText]) -> LabelledTexts:
    """Encode texts. Raises as `Tokenizer.encode` does; UnknownCharacters with the location of the text."""
    ids = [encode_member(tokenizer.encode_prompt, text.text, text.where) for text in texts]
    return LabelledTexts(join_ids(ids, tokenizer), np.cumsum([0, *map(len, ids)], dtype=np.int64), texts)


def sort_labels(labels: Iterable[str]) -> list[str]:
    """Sort the distinct labels: numerically if all are integers, else by name."""
    different = set(labels)
    if all(label.lstrip("-").isdecimal() for label in different):
        return sorted(different, key=lambda label: (int(label), label))
    return sorted(different)


def read_labelled(source: str, data: DataConfig, note: Notify) -> Iterator[LabelledText]:
    """Yield the texts of `source` in order.

    Raises as reading does, and UserError, with its location, for an empty text, a label that is missing, empty or too
    long, and labels of different types.
    """
    first: tuple[str, type] | None = None
    for where, text, label, is_record in _labelled(source, data, note):
        first = first or (where, type(label))
        if type(label) is not first[1]:
            message = f"this label is {_KINDS[type(label)]}; that of {first[0]} is {_KINDS[first[1]]}"
            raise UserError(message, where=where)
        written = label if isinstance(label, str) else json.dumps(label)
        if not written.strip():
            raise UserError("the label is empty", where=where)
        if len(written) > _MAX_LABEL:
            shown = f"the label '{escape_control_chars(written[:40])}...' has {len(written):,} characters"
            raise UserError(f"{shown}: more than {_MAX_LABEL}", where=where)
        encode_text(written, where)
        if not text.strip():
            raise UserError("the text is empty, so there is nothing to classify", where=where)
        yield LabelledText(where, text, written, is_record)


def _labelled(source: str, data: DataConfig, note: Notify) -> Iterator[tuple[str, str, str | int | bool, bool]]:
    """Yield (location, text, label, True if it is a record) for each text."""
    for file in find_files(source, ReaderOptions.of(data), note):
        if file.records is not None:
            for record in file.records([data.text_key, data.label_key], note):
                text, label = take_text(record, data.text_key, "data.text_key"), record.values.get(data.label_key)
                encode_text(text, record.where)
                if not isinstance(label, str | int):
                    raise MissingKeyError(data.label_key, "data.label_key", record, "label")
                yield record.where, text, label, True
            continue
        if not file.folder:
            formats = ", ".join(RECORD_SUFFIXES)
            raise UserError(f"{file.name} has no labels: they are read from {formats}, or are the names of folders")
        for where, pieces in file.read(note):
            yield where, b"".join(pieces).decode(), file.folder, False


def _shown(text: LabelledText) -> str:
    return escape_control_chars(text.label[:50])
