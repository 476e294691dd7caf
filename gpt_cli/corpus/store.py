"""Tokens on the disk: a directory that proves itself, with the tokenizer that made them.

    tokens.json  tokenizer.json  train-00000.npy ...  val-00000.npy ...  SHA256SUMS

The arrays are plain .npy files of at most 100 million ids each, which any NumPy reads without us.
"""

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from gpt_cli.corpus.split import Split
from gpt_cli.errors import RequestError
from gpt_cli.files import DamagedError, commit_files, read_directory
from gpt_cli.tokenizer import Tokenizer, load_tokenizer

Tokens = npt.NDArray[np.uint16 | np.uint32]

FORMAT: Final = "gpt-tokens-1"
SHARD_TOKENS = 100_000_000
_MANIFEST = "tokens.json"


@dataclass(frozen=True)
class SplitFacts:
    """What is in one split."""

    characters: int
    bytes: int
    """Of the text in UTF-8: what bits per byte are counted over."""
    tokens: int
    documents: int
    document_starts: tuple[int, ...]
    """Index of the first token of each document, or of the part of one, in the split."""


@dataclass(frozen=True)
class _Shard:
    file: str
    tokens: int


@dataclass(frozen=True)
class _Part:
    facts: SplitFacts
    shards: Annotated[tuple[_Shard, ...], Field(min_length=1)]


@dataclass(frozen=True)
class _Manifest:
    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    format: Literal["gpt-tokens-1"]
    tokenizer_sha256: str
    fingerprint: str
    val_fraction: float
    train: _Part
    val: _Part


@dataclass(frozen=True)
class TokenStore:
    """A token store that was verified: every file is what was written, and belongs to the others."""

    path: Path
    tokenizer: Tokenizer
    facts: dict[Split, SplitFacts]
    fingerprint: str
    """sha256 (hex) of the text that the tokens encode."""
    val_fraction: float
    _shards: dict[Split, tuple[_Shard, ...]]

    @classmethod
    def open(cls, path: Path) -> "TokenStore":
        """The store at `path`, verified. Raises RequestError if there is none, DamagedError if it differs."""
        if not is_store(path):
            raise RequestError(f"{path} is not a token store", hint="gpt tokenize CORPUS --out DIR makes one")
        manifest = _parse(path, read_directory(path, (_MANIFEST,))[_MANIFEST])
        tokenizer = load_tokenizer(path / "tokenizer.json")
        if tokenizer.digest != manifest.tokenizer_sha256:
            raise DamagedError(f"{path} is damaged: its tokens were made with another tokenizer.json")
        parts: dict[Split, _Part] = {"train": manifest.train, "val": manifest.val}
        return cls(
            path,
            tokenizer,
            {split: part.facts for split, part in parts.items()},
            manifest.fingerprint,
            manifest.val_fraction,
            {split: part.shards for split, part in parts.items()},
        )

    def tokens(self, split: Split) -> Tokens:
        """(n,) ids of a split; one shard is mapped from the disk, and writing to it changes no file."""
        arrays = [self._load(shard) for shard in self._shards[split]]
        tokens = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        if len(tokens) != self.facts[split].tokens:
            raise DamagedError(
                f"{self.path} is damaged: {len(tokens):,} {split} tokens, not {self.facts[split].tokens:,}"
            )
        return tokens

    def _load(self, shard: _Shard) -> Tokens:
        path = self.path / Path(shard.file).name
        try:
            array: Tokens = np.load(path, mmap_mode="c", allow_pickle=False)
        except (ValueError, OSError) as error:
            raise DamagedError(f"{path} is damaged: {error}") from error
        dtype = token_dtype(self.tokenizer.vocab_size)
        if array.shape != (shard.tokens,) or array.dtype != dtype:
            raise DamagedError(f"{path} is damaged: {array.dtype} {array.shape}, not {dtype} ({shard.tokens},)")
        if (largest := int(array.max(initial=0))) >= self.tokenizer.vocab_size:
            place = int(np.argmax(array == largest))
            raise DamagedError(f"{path} is damaged: id {largest:,} at index {place:,} is none of the vocabulary's")
        return array


def is_store(path: Path) -> bool:
    """Whether `path` looks like a token store."""
    return os.path.isfile(path / _MANIFEST)  # unlike Path.is_file, False also for what is no path at all


def write_store(
    path: Path,
    tokenizer: Tokenizer,
    tokens: Mapping[Split, Tokens],
    facts: Mapping[Split, SplitFacts],
    *,
    fingerprint: str,
    val_fraction: float,
    replace: bool = False,
) -> None:
    """Write a token store, which appears at `path` whole or not at all.

    Raises ExistsError if something is there (`replace`: takes its place), DiskError if it cannot be written.
    """
    files: dict[str, bytes | Iterable[bytes]] = {"tokenizer.json": tokenizer.to_json().encode()}
    parts: dict[Split, _Part] = {}
    for split, array in tokens.items():
        shards = [array[start : start + SHARD_TOKENS] for start in range(0, len(array), SHARD_TOKENS)]
        named = {f"{split}-{number:05}.npy": shard for number, shard in enumerate(shards)}
        files |= {name: _npy(shard) for name, shard in named.items()}
        parts[split] = _Part(facts[split], tuple(_Shard(name, len(shard)) for name, shard in named.items()))
    manifest = _Manifest(FORMAT, tokenizer.digest, fingerprint, val_fraction, parts["train"], parts["val"])
    files[_MANIFEST] = (json.dumps(asdict(manifest), indent=1) + "\n").encode()
    commit_files(path, files, replace=replace)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The type of the ids of a vocabulary: uint16 as long as the largest id fits, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def narrow(ids: npt.NDArray[np.uint32], vocab_size: int) -> Tokens:
    """`ids` in the type they are stored in. Raises ValueError for an id that could wrap around in it."""
    if ids.size and (largest := int(ids.max())) >= vocab_size:
        raise ValueError(f"id {largest} is outside the vocabulary of {vocab_size}")
    return ids.astype(token_dtype(vocab_size), copy=False)


def _npy(array: Tokens) -> Iterator[bytes]:
    header = io.BytesIO()
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(little))
    yield header.getvalue()
    yield np.ascontiguousarray(little).tobytes()


def _parse(path: Path, data: bytes) -> _Manifest:
    try:
        return TypeAdapter(_Manifest).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DamagedError(f"{path / _MANIFEST} is not a token store's: {key}: {first['msg']}") from error
