"""Divide examples or labelled texts of several sources into splits; each goes whole to one split."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.split import SPLITS, Split
from gpt_cli.corpus.store import SplitStats
from gpt_cli.corpus.vocab_size import COUNTED, choose_vocab_size
from gpt_cli.errors import Notify
from gpt_cli.tokenizer import Tokenizer, train_tokenizer

T = TypeVar("T")


class _HasText(Protocol):
    @property
    def text(self) -> str: ...


@dataclass(frozen=True, eq=False)
class Prepared(Generic[T]):
    """Encoded examples or labelled texts by split, with their tokenizer."""

    tokenizer: Tokenizer
    splits: dict[Split, T]
    stats: dict[Split, SplitStats]
    fingerprint: str
    """sha256 (hex) of all of them."""


def divide(
    data: DataConfig,
    read: Callable[[str, "hashlib._Hash"], list[T]],
    assign: Callable[[list[T], float, float], Iterable[int]],
) -> tuple[dict[Split, list[T]], str]:
    """The members of each split, and the fingerprint of all; training members are repeated by their source's weight.

    `read(source, digest)` returns the members of a source and updates the hash with them. `assign(members,
    val_fraction, test_fraction)` returns the index into SPLITS of each. `data.val_source` replaces the validation
    split.
    """
    sources = [data.source] if isinstance(data.source, str) else data.source
    val_sources = [data.val_source] if isinstance(data.val_source, str) else data.val_source or []
    digest = hashlib.sha256()
    splits: dict[Split, list[T]] = {split: [] for split in SPLITS[: 3 if data.test_fraction else 2]}
    weighted = [
        (member, weight)
        for source, weight in zip(sources, data.weights or [1] * len(sources), strict=True)
        for member in read(source, digest)
    ]
    units = assign([member for member, _ in weighted], 0.0 if val_sources else data.val_fraction, data.test_fraction)
    for (member, weight), unit in zip(weighted, units, strict=True):
        splits[SPLITS[unit]] += [member] * (weight if SPLITS[unit] == "train" else 1)
    digest.update(b"validation")
    for source in val_sources:
        splits["val"] += read(source, digest)
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
        vocab_size = choose_vocab_size("\n".join(training_texts())[:COUNTED], characters)
        note(f"BPE with {vocab_size:,} ids suits {characters:,} characters; a longer text would get more")
        config = config.model_copy(update={"vocab_size": vocab_size})
    return train_tokenizer(training_texts(), config)
