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
from gpt_cli.corpus.store import SplitStats
from gpt_cli.corpus.tokens import Tokens, to_token_dtype
from gpt_cli.corpus.vocab_size import COUNTED, choose_vocab_size
from gpt_cli.errors import Notify, UserError
from gpt_cli.tokenizer import Ids, Tokenizer, UnknownCharacters, train_tokenizer


class _Member(Protocol):
    """An example or a labelled text."""

    @property
    def text(self) -> str: ...


T = TypeVar("T", bound=_Member)


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
    """Each example or labelled text counts as a document."""
    fingerprint: str
    """sha256 (hex) of all of them."""

    @classmethod
    def of(
        cls, division: tuple[dict[Split, list[T]], str], tokenizer: Tokenizer, encode: Callable[[list[T]], Encoded]
    ) -> "Prepared[Encoded]":
        """Encode each split of the result of `divide`. Raises as `encode` does."""
        splits, fingerprint = division
        encoded, stats = {split: encode(members) for split, members in splits.items()}, {}
        for split, members in splits.items():
            texts, tokens = [member.text.encode() for member in members], encoded[split]
            sizes = sum(map(count_characters, texts)), sum(map(len, texts))
            stats[split] = SplitStats(*sizes, len(tokens.tokens), len(tokens), tokens.starts[:-1])
        return Prepared(tokenizer, encoded, stats, fingerprint)


def divide(
    data: DataConfig,
    read: Callable[[str], Iterable[T]],
    content: Callable[[T], object],
    assign: Callable[[list[T], float, float], Iterable[int]],
) -> tuple[dict[Split, list[T]], str]:
    """Return the members of each split, and the fingerprint of all; weights of sources repeat training members.

    `read(source)` returns the members of a source, and `content` what the fingerprint is of. `assign(members,
    val_fraction, test_fraction)` returns the index into SPLITS of each. `data.val_source` replaces the validation
    split. Raises UserError for a source without members.
    """
    digest = hashlib.sha256()

    def read_hashed(source: str) -> list[T]:
        members = list(read(source))
        if not members:
            raise UserError(f"{source} has no {'texts' if data.format == 'labelled' else 'examples'}")
        for member in members:
            digest.update(hashlib.sha256(json.dumps(content(member)).encode()).digest())
        return members

    splits: dict[Split, list[T]] = {split: [] for split in SPLITS[: 3 if data.test_fraction else 2]}
    sources = zip(data.sources, data.source_weights, strict=True)
    weighted = [(member, weight) for source, weight in sources for member in read_hashed(source)]
    val_fraction = 0.0 if data.val_sources else data.val_fraction
    units = assign([member for member, _ in weighted], val_fraction, data.test_fraction)
    for (member, weight), unit in zip(weighted, units, strict=True):
        splits[SPLITS[unit]] += [member] * (weight if SPLITS[unit] == "train" else 1)
    digest.update(b"validation")
    for source in data.val_sources:
        splits["val"] += read_hashed(source)
    return splits, digest.hexdigest()


def learn_from_divided(
    splits: Mapping[Split, Sequence[_Member]],
    training_texts: Callable[[], Iterable[str]],
    config: TokenizerConfig,
    note: Notify,
) -> Tokenizer:
    """Learn the tokenizer of a config: an alphabet from all texts, BPE from `training_texts`."""
    if config.file is not None or config.kind != "bpe":
        return train_tokenizer((member.text for members in splits.values() for member in members), config)
    if config.vocab_size is None:
        characters = sum(len(member.text) for members in splits.values() for member in members)
        vocab_size = choose_vocab_size("\n".join(training_texts())[:COUNTED], characters, config.pattern or "gpt2")
        note(f"BPE with {vocab_size:,} ids suits {characters:,} characters; a longer text would get more")
        config = config.model_copy(update={"vocab_size": vocab_size})
    return train_tokenizer(training_texts(), config)


def encode_member(encode: Callable[[str], Ids], text: str, where: str) -> Ids:
    """Encode a text. Raises as `encode` does; UnknownCharacters with the place `where`."""
    try:
        return encode(text)
    except UnknownCharacters as error:
        error.where = where
        raise


def join_ids(parts: Sequence[Ids], tokenizer: Tokenizer) -> Tokens:
    """Concatenate ids in the type of a store."""
    return to_token_dtype(np.concatenate([np.zeros(0, dtype=np.uint32), *parts]), tokenizer.vocab_size)
