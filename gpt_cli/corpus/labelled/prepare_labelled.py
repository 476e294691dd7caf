"""From a config whose `data.format` is labelled to texts as tokens with a class each, all of them in memory.

Shapes: E texts, N tokens of all of them together.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.corpus_text import count_characters
from gpt_cli.corpus.divide import Prepared, divide, learn_from_divided
from gpt_cli.corpus.labelled.read_labelled import LabelledText, read_labelled
from gpt_cli.corpus.split import Split
from gpt_cli.corpus.store import SplitStats, Tokens, to_token_dtype
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.tokenizer import Tokenizer, UnknownCharacters


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """The texts of a split."""

    tokens: Tokens
    """(N,) ids, text after text."""
    starts: npt.NDArray[np.int64]
    """(E + 1,) index of the first token of each, and N."""
    source: Sequence[LabelledText]
    """(E,) what they are of."""

    def __len__(self) -> int:
        return len(self.source)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """(E,) tokens of each."""
        return np.diff(self.starts)


def prepare_labelled(data: DataConfig, config: TokenizerConfig, note: Notify) -> Prepared[LabelledTexts]:
    """Read, divide and encode the labelled texts of a config.

    Raises what reading and `train_tokenizer` raise, UserError, with its place, for labels of which too few texts are
    there, and RequestError for a text that the vocabulary cannot spell.
    """
    splits, fingerprint = divide_labelled(data, note)
    tokenizer = learn_from_labelled(splits, config, note)
    encoded: dict[Split, LabelledTexts] = {}
    for split, found in splits.items():
        try:
            encoded[split] = encode_labelled(tokenizer, found)
        except UnknownCharacters as error:
            raise RequestError(
                error.message, hint="a tokenizer learned from this very text, or one of bytes or bpe, knows them"
            ) from error
    facts = {split: _stats_of(encoded[split]) for split in splits}
    return Prepared(tokenizer, encoded, facts, fingerprint)


def divide_labelled(data: DataConfig, note: Notify) -> tuple[dict[Split, list[LabelledText]], str]:
    """The texts of each split, and the fingerprint of all. Raises as `prepare_labelled` does."""
    splits, fingerprint = divide(
        data,
        lambda source, digest: _read(source, data, note, digest),
        lambda texts, val_fraction, test_fraction: assign_by_label(texts, val_fraction, test_fraction, data.split_seed),
    )
    known = {text.label for text in splits["train"]}
    for text in splits["val"]:
        if text.label not in known:
            raise UserError(f"the label '{_shown(text)}' is of no text that trains", where=text.where)
    return splits, fingerprint


def assign_by_label(
    texts: Sequence[LabelledText], val_fraction: float, test_fraction: float, seed: int
) -> npt.NDArray[np.int64]:
    """(E,) index into SPLITS of each text: of each label about these fractions, at least one text in each split.

    Texts are dealt out by a hash of what they say and `seed`, equal ones alike, whatever their order and the others.
    Raises UserError, with its place, for a label with too few different texts.
    """
    _check_labels(texts)
    places: dict[str, list[int]] = {}  # of equal texts
    for number, text in enumerate(texts):
        places.setdefault(text.text, []).append(number)
    by_label: dict[str, list[tuple[bytes, list[int]]]] = {}
    for said, numbers in places.items():  # equal texts of two labels go with the first
        key = hashlib.sha256(f"{seed}\0{said}".encode()).digest()
        by_label.setdefault(texts[numbers[0]].label, []).append((key, numbers))
    units = np.zeros(len(texts), dtype=np.int64)
    needed = 1 + (val_fraction > 0) + (test_fraction > 0)
    for members in by_label.values():
        if len(members) < needed:
            text = texts[members[0][1][0]]
            raise UserError(
                f"the label '{_shown(text)}' has {len(members)} different texts; each split needs one of its own",
                where=text.where,
                hint="give more of them, or leave that label out",
            )
        members.sort()
        tests = max(1, round(test_fraction * len(members))) if test_fraction else 0
        validates = max(1, round(val_fraction * len(members))) if val_fraction else 0
        validates = min(validates, len(members) - tests - 1)
        for place, (_, numbers) in enumerate(members[: tests + validates]):
            units[numbers] = 2 if place < tests else 1
    return units


def learn_from_labelled(splits: dict[Split, list[LabelledText]], config: TokenizerConfig, note: Notify) -> Tokenizer:
    """The tokenizer that a config asks for; BPE learns from the texts that train."""
    return learn_from_divided(splits, lambda: (text.text for text in splits["train"]), config, note)


def encode_labelled(tokenizer: Tokenizer, texts: Sequence[LabelledText]) -> LabelledTexts:
    """The texts as tokens. Raises what `Tokenizer.encode` raises."""
    ids = [tokenizer.encode(text.text) for text in texts]
    starts = np.cumsum([0, *map(len, ids)], dtype=np.int64)
    tokens = to_token_dtype(np.concatenate([np.zeros(0, dtype=np.uint32), *ids]), tokenizer.vocab_size)
    return LabelledTexts(tokens, starts, texts)


def sort_labels(labels: Iterable[str]) -> list[str]:
    """The different labels in order: by number where all are whole numbers, else by name."""
    different = set(labels)
    if all(label.lstrip("-").isdecimal() for label in different):
        return sorted(different, key=lambda label: (int(label), label))
    return sorted(different)


def _check_labels(texts: Sequence[LabelledText]) -> None:
    """Raise UserError for labels of which nothing can be learned: one alone, or any that is seen once."""
    seen: dict[str, list[LabelledText]] = {}
    for text in texts:
        seen.setdefault(text.label, []).append(text)
    if len(seen) == 1:
        all_of_them = "the one text has" if len(texts) == 1 else f"all {len(texts):,} texts have"
        in_folders = "labels are the names of folders of text files, or stand under a key of .jsonl, .csv and .parquet"
        raise UserError(
            f"{all_of_them} the label '{_shown(texts[0])}': there is nothing to tell apart",
            where=texts[0].where,
            hint="data.label_key=KEY names the key of the label" if texts[0].is_record else in_folders,
        )
    once = [found[0] for found in seen.values() if len(found) == 1]
    if once and len(once) > len(seen) / 2:
        raise UserError(
            f"there are {len(seen):,} labels for {len(texts):,} texts, and {len(once):,} of them are seen once",
            where=once[0].where,
            hint="data.label_key=KEY names the key of the label",
        )
    if once:
        raise UserError(
            f"the label '{_shown(once[0])}' is seen once: it cannot be learned and validated",
            where=once[0].where,
            hint="give more texts of it, or leave that one out",
        )


def _read(source: str, data: DataConfig, note: Notify, digest: "hashlib._Hash") -> list[LabelledText]:
    texts = list(read_labelled(source, data, note))
    if not texts:
        raise UserError(f"{source} has no texts")
    for text in texts:
        digest.update(hashlib.sha256(json.dumps((text.text, text.label)).encode()).digest())
    return texts


def _stats_of(encoded: LabelledTexts) -> SplitStats:
    """The sizes of a split; its documents are the texts."""
    texts = [text.text.encode() for text in encoded.source]
    return SplitStats(
        sum(map(count_characters, texts)), sum(map(len, texts)), len(encoded.tokens), len(encoded), encoded.starts[:-1]
    )


def _shown(text: LabelledText) -> str:
    return escape_control_chars(text.label[:50])
