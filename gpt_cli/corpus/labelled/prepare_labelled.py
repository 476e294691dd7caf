"""From a config whose `data.format` is labelled to texts as tokens with a class each, all of them in memory.

Shapes: E texts, N tokens of all of them together.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.blocks import Split
from gpt_cli.corpus.divide import (
    VOCABULARY_HINT,
    EncodedTexts,
    Prepared,
    divide,
    encode_member,
    learn_from_divided,
    stats_of,
)
from gpt_cli.corpus.labelled.read_labelled import LabelledText, read_labelled
from gpt_cli.corpus.store import to_token_dtype
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import Tokenizer, UnknownCharacters


@dataclass(frozen=True, eq=False)
class LabelledTexts(EncodedTexts):
    """The texts of a split."""

    source: Sequence[LabelledText]
    """(E,) the texts that were encoded."""


def prepare_labelled(data: DataConfig, config: TokenizerConfig, note: Notify) -> Prepared[LabelledTexts]:
    """Read, divide and encode the labelled texts of a config.

    Raises as reading and `train_tokenizer` do, UserError, with its location, for a label with too few texts, and
    RequestError for characters that are not in the vocabulary.
    """
    splits, fingerprint = divide_labelled(data, note)
    tokenizer = learn_from_labelled(splits, config, note)
    encoded: dict[Split, LabelledTexts] = {}
    for split, texts in splits.items():
        try:
            encoded[split] = encode_labelled(tokenizer, texts)
        except UnknownCharacters as error:
            raise RequestError(error.message, where=error.where, hint=VOCABULARY_HINT) from error
    stats = {split: stats_of(texts, encoded[split]) for split, texts in splits.items()}
    return Prepared(tokenizer, encoded, stats, fingerprint)


def divide_labelled(data: DataConfig, note: Notify) -> tuple[dict[Split, list[LabelledText]], str]:
    """The texts of each split, and the fingerprint of all. Raises as `prepare_labelled` does."""
    splits, fingerprint = divide(
        data,
        "texts",
        lambda source: read_labelled(source, data, note),
        lambda text: (text.text, text.label),
        lambda texts, val_fraction, test_fraction: assign_by_label(texts, val_fraction, test_fraction, data.split_seed),
    )
    labels = {text.label for text in splits["train"]}
    for text in splits["val"]:
        if text.label not in labels:
            raise UserError(
                f"the label '{_escaped_label(text)}' is of no text that trains",
                where=text.where,
                hint="data.val_source=null holds out a part of data.source instead" if data.val_source else None,
            )
    if alike := _alike_labels(labels):
        note(f"{' and '.join(map(repr, alike))} are different labels, which differ only in spaces or capitals")
    return splits, fingerprint


def assign_by_label(
    texts: Sequence[LabelledText], val_fraction: float, test_fraction: float, seed: int
) -> npt.NDArray[np.int64]:
    """(E,) index into SPLITS of each text: about these fractions of each label, at least one text in each split.

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
    needed = 1 + (val_fraction > 0) + (test_fraction > 0)
    for groups in by_label.values():
        if len(groups) < needed:
            text = texts[groups[0][1][0]]
            raise UserError(
                f"the label '{_escaped_label(text)}' has {plural(len(groups), 'different text')};"
                " each split needs one of its own",
                where=text.where,
                hint="give more of them, or leave that label out",
            )
        groups.sort()
        tests = max(1, round(test_fraction * len(groups))) if test_fraction else 0
        validates = max(1, round(val_fraction * len(groups))) if val_fraction else 0
        validates = min(validates, len(groups) - tests - 1)
        for rank, (_, numbers) in enumerate(groups[: tests + validates]):
            units[numbers] = 2 if rank < tests else 1
    return units


def _alike_labels(labels: Iterable[str]) -> list[str]:
    """The first labels, by name, that differ only in spaces or capitals."""
    alike: dict[str, list[str]] = {}
    for label in sorted(labels):
        alike.setdefault("".join(label.split()).casefold(), []).append(label)
    return next((group for group in alike.values() if len(group) > 1), [])


def learn_from_labelled(splits: dict[Split, list[LabelledText]], config: TokenizerConfig, note: Notify) -> Tokenizer:
    """The tokenizer of a config; BPE is trained on the training texts."""
    return learn_from_divided(splits, lambda: (text.text for text in splits["train"]), config, note)


def encode_labelled(tokenizer: Tokenizer, texts: Sequence[LabelledText]) -> LabelledTexts:
    """Encode texts. Raises as `Tokenizer.encode` does; UnknownCharacters with the location of the text."""
    ids = [encode_member(tokenizer.encode_prompt, text.text, text.where) for text in texts]
    starts = np.cumsum([0, *map(len, ids)], dtype=np.int64)
    tokens = to_token_dtype(np.concatenate([np.zeros(0, dtype=np.uint32), *ids]), tokenizer.vocab_size)
    return LabelledTexts(tokens, starts, texts)


def sort_labels(labels: Iterable[str]) -> list[str]:
    """The distinct labels, sorted: numerically if all are integers, else by name."""
    different = set(labels)
    if all(label.lstrip("-").isdecimal() for label in different):
        return sorted(different, key=lambda label: (int(label), label))
    return sorted(different)


_FOLDER_HINT = "labels are the names of folders of text files, or stand under a key of .jsonl, .csv and .parquet"


def _check_labels(texts: Sequence[LabelledText]) -> None:
    """Raise UserError if all texts have the same label, or a label occurs only once."""
    by_label: dict[str, list[LabelledText]] = {}
    for text in texts:
        by_label.setdefault(text.label, []).append(text)
    if len(by_label) == 1:
        subject = "the one text has" if len(texts) == 1 else f"all {len(texts):,} texts have"
        raise UserError(
            f"{subject} the label '{_escaped_label(texts[0])}': there is nothing to tell apart",
            where=texts[0].where,
            hint="data.label_key=KEY names the key of the label" if texts[0].is_record else _FOLDER_HINT,
        )
    singles = [texts_of_label[0] for texts_of_label in by_label.values() if len(texts_of_label) == 1]
    if singles and len(singles) > len(by_label) / 2:
        raise UserError(
            f"there are {len(by_label):,} labels for {len(texts):,} texts, and {len(singles):,} of them are seen once",
            where=singles[0].where,
            hint="data.label_key=KEY names the key of the label" if singles[0].is_record else _FOLDER_HINT,
        )
    if singles:
        raise UserError(
            f"the label '{_escaped_label(singles[0])}' is seen once: it cannot be learned and validated",
            where=singles[0].where,
            hint="give more texts of it, or leave that one out",
        )


def _escaped_label(text: LabelledText) -> str:
    return escape_control_chars(text.label[:50])
