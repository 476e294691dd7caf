"""Divide examples or labelled texts of several sources into splits; each goes whole to one split."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.blocks import SPLITS, Split, count_characters
from gpt_cli.corpus.store import SplitStats, Tokens
from gpt_cli.corpus.vocab_size import COUNTED, choose_vocab_size
from gpt_cli.errors import Notify, UserError
from gpt_cli.tokenizer import Ids, Tokenizer, UnknownCharacters, train_tokenizer

VOCABULARY_HINT = (
    "a tokenizer learned from this very text, or one of bytes or bpe, knows them; a model that is trained further"
    " (train.init_from) keeps its own, and needs a text without them"
)


class _HasText(Protocol):
    """An example or a labelled text."""

    @property
    def text(self) -> str: ...


T = TypeVar("T", bound=_HasText)


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """The examples or labelled texts of a split as tokens. Shapes: E of them, N tokens of all together."""

    tokens: Tokens
    """(N,) ids, one after the other."""
    starts: npt.NDArray[np.int64]
    """(E + 1,) index of the first token of each, and N."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """(E,) tokens of each."""
        return np.diff(self.starts)


Encoded = TypeVar("Encoded", bound=EncodedTexts)


@dataclass(frozen=True, eq=False)
class Prepared(Generic[Encoded]):
    """Encoded examples or labelled texts by split, with their tokenizer."""

    tokenizer: Tokenizer
    splits: dict[Split, Encoded]
    stats: dict[Split, SplitStats]
    fingerprint: str
    """sha256 (hex) of all of them."""


def divide(
    data: DataConfig,
    kind: str,
    read: Callable[[str], Iterable[T]],
    content: Callable[[T], object],
    assign: Callable[[list[T], float, float], Iterable[int]],
) -> tuple[dict[Split, list[T]], str]:
    """The members of each split, and the fingerprint of all; training members are repeated by their source's weight.

    `read(source)` returns the members of a source, called `kind` in the UserError where there are none, and `content`
    what the fingerprint is of. `assign(members, val_fraction, test_fraction)` returns the index into SPLITS of each.
    `data.val_source` replaces the validation split.
    """
    digest = hashlib.sha256()

    def read_hashed(source: str) -> list[T]:
        members = list(read(source))
        if not members:
            raise UserError(f"{source} has no {kind}")
        for member in members:
            digest.update(hashlib.sha256(json.dumps(content(member)).encode()).digest())
        return members

    splits: dict[Split, list[T]] = {split: [] for split in SPLITS[: 3 if data.test_fraction else 2]}
    weighted = [
        (member, weight)
        for source, weight in zip(data.sources, data.weights or [1] * len(data.sources), strict=True)
        for member in read_hashed(source)
    ]
    val_fraction = 0.0 if data.val_sources else data.val_fraction
    units = assign([member for member, _ in weighted], val_fraction, data.test_fraction)
    for (member, weight), unit in zip(weighted, units, strict=True):
        splits[SPLITS[unit]] += [member] * (weight if SPLITS[unit] == "train" else 1)
    digest.update(b"validation")
    for source in data.val_sources:
        splits["val"] += read_hashed(source)
    return splits, digest.hexdigest()


def learn_from_divided(
    splits: Mapping[Split, Sequence[_HasText]],
    training_texts: Callable[[], Iterable[str]],
    config: TokenizerConfig,
    note: Notify,
) -> Tokenizer:
    """The tokenizer of a config. An alphabet is that of all texts; BPE is trained on `training_texts`."""
    if config.file is not None or config.kind != "bpe":
        return train_tokenizer((member.text for members in splits.values() for member in members), config)
    if config.vocab_size is None:
        characters = sum(len(member.text) for members in splits.values() for member in members)
        vocab_size = choose_vocab_size("\n".join(training_texts())[:COUNTED], characters, config.pattern or "gpt2")
        note(f"BPE with {vocab_size:,} ids suits {characters:,} characters; a longer text would get more")
        config = config.model_copy(update={"vocab_size": vocab_size})
    return train_tokenizer(training_texts(), config)


def encode_member(encode: Callable[[str], Ids], text: str, where: str) -> Ids:
    """The ids of `text`. Raises as `encode` does; UnknownCharacters with the location `where`."""
    try:
        return encode(text)
    except UnknownCharacters as error:
        error.where = where
        raise


def stats_of(members: Sequence[_HasText], encoded: EncodedTexts) -> SplitStats:
    """The statistics of a split; each of its members counts as a document."""
    texts = [member.text.encode() for member in members]
    return SplitStats(
        sum(map(count_characters, texts)), sum(map(len, texts)), len(encoded.tokens), len(encoded), encoded.starts[:-1]
    )
