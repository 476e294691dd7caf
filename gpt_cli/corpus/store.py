"""Tokens on the disk: a directory with checksums, beside the tokenizer that made them.

    tokens.json  tokenizer.json  train-00000.npy ...  train-documents.npy  (the same for val, test)  SHA256SUMS

The arrays are plain .npy files, which any NumPy reads without us: ids, at most 100 million a file, and the index of
the first id of each document.
"""

import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.mapped import MappedTokens
from gpt_cli.corpus.split import SPLITS, Split
from gpt_cli.errors import RequestError
from gpt_cli.files import DamagedError, NewFile, atomic_directory, read_directory, write_file
from gpt_cli.literals import SplitBy
from gpt_cli.tokenizer import Tokenizer, load_tokenizer

Tokens = npt.NDArray[np.uint16 | np.uint32]

FORMAT: Final = "gpt-tokens-2"
SHARD_TOKENS = 100_000_000
_MANIFEST = "tokens.json"
_CHUNK = 1 << 22  # ids that are looked at at once
_HEADER = re.compile(rb"\{('descr': '[<>|=]?[a-zA-Z]\d+(?:\[\w+\])?', 'fortran_order': \w+, 'shape': \(\d+,\)), \} *\n")


@dataclass(frozen=True)
class SplitStats:
    characters: int
    bytes: int
    """Bytes of the text in UTF-8: what bits per byte are counted over."""
    tokens: int
    documents: int
    document_starts: npt.NDArray[np.int64] = field(compare=False, repr=False)
    """(documents,) index of the first token of each document, or of the part of one, in the split."""


@dataclass(frozen=True)
class SplitSpec:
    """The keys of `data` that decided the splits of a store."""

    split: SplitBy
    val_fraction: float
    test_fraction: float

    @classmethod
    def of(cls, data: DataConfig) -> "SplitSpec":
        return cls(data.split, data.val_fraction, data.test_fraction)


_Size = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class _Shard:
    file: str
    tokens: _Size


@dataclass(frozen=True)
class _Part:
    characters: _Size
    bytes: _Size
    documents: _Size
    shards: Annotated[tuple[_Shard, ...], Field(min_length=1)]

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)


@dataclass(frozen=True)
class _Manifest:
    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    format: Literal["gpt-tokens-2"]
    tokenizer_sha256: str
    fingerprint: str
    division: SplitSpec
    train: _Part
    val: _Part
    test: _Part | None

    def part(self, split: Split) -> _Part | None:
        return {"train": self.train, "val": self.val, "test": self.test}[split]


@dataclass(frozen=True)
class TokenStore:
    """A token store that was verified: every file is what was written, and belongs to the others."""

    path: Path
    tokenizer: Tokenizer
    facts: dict[Split, SplitStats]
    """Statistics of each split there is: a store need not have a test split."""
    fingerprint: str
    """sha256 (hex) of the text that the tokens encode."""
    division: SplitSpec
    _manifest: _Manifest

    @classmethod
    def open(cls, path: Path) -> "TokenStore":
        """The store at `path`, verified. Raises RequestError if there is none, DamagedError if it differs."""
        if not is_store(path):
            raise RequestError(f"{path} is not a token store", hint="gpt tokenize CORPUS --out DIR makes one")
        manifest = _parse(path, read_directory(path, (_MANIFEST,))[_MANIFEST])
        tokenizer = load_tokenizer(path / "tokenizer.json")
        if tokenizer.digest != manifest.tokenizer_sha256:
            raise DamagedError(f"{path} is damaged: its tokens were made with another tokenizer.json")
        facts = {split: _facts(path, split, part) for split in SPLITS if (part := manifest.part(split)) is not None}
        return cls(path, tokenizer, facts, manifest.fingerprint, manifest.division, manifest)

    def tokens(self, split: Split) -> Tokens:
        """(n,) ids of a split, in memory: what happens to the files from now on changes nothing.

        Raises RequestError for a split that the store has not, DamagedError for files that are not what it says.
        """
        part, dtype = self._part(split), token_dtype(self.tokenizer.vocab_size)
        places = [self.path / Path(shard.file).name for shard in part.shards]
        for place, shard in zip(places, part.shards, strict=True):
            _require_size(place, shard.tokens * dtype.itemsize)
        tokens: Tokens = np.empty(part.tokens, dtype=dtype)
        start = 0
        for place, shard in zip(places, part.shards, strict=True):
            into = tokens[start : start + shard.tokens]
            _load(place, into)
            self._check_ids(place, into)
            start += shard.tokens
        return tokens

    def mapped(self, split: Split) -> MappedTokens:
        """(n,) ids of a split, read from the files when they are asked for. Raises as `tokens` does.

        A store that is replaced meanwhile stays readable; one whose files are cut short ends the process.
        """
        part, dtype = self._part(split), token_dtype(self.tokenizer.vocab_size)
        pieces = [_map(self.path / Path(shard.file).name, dtype, shard.tokens) for shard in part.shards]
        for shard, piece in zip(part.shards, pieces, strict=True):
            self._check_ids(self.path / Path(shard.file).name, piece)
        return MappedTokens(pieces)

    def read(self, split: Split, start: int, stop: int) -> Tokens:
        """(stop - start,) ids of a split from index `start` on, fewer where it ends. Raises as `tokens` does."""
        part = self._part(split)
        pieces: list[Tokens] = [np.empty(0, dtype=token_dtype(self.tokenizer.vocab_size))]
        for shard in part.shards:
            first, last = max(0, start), min(stop, shard.tokens)
            if first < last:
                place = self.path / Path(shard.file).name
                into: Tokens = np.empty(last - first, dtype=token_dtype(self.tokenizer.vocab_size))
                _load(place, into, of=shard.tokens, skip=first)
                self._check_ids(place, into, first)
                pieces.append(into)
            start, stop = start - shard.tokens, stop - shard.tokens
        return np.concatenate(pieces)

    def _part(self, split: Split) -> _Part:
        part = self._manifest.part(split)
        if part is None:
            raise RequestError(f"{self.path} has no {split} split", hint="data.test_fraction=0.05 makes one")
        return part

    def _check_ids(self, place: Path, ids: Tokens, first: int = 0) -> None:
        vocab_size = self.tokenizer.vocab_size
        for at in range(0, len(ids), _CHUNK):
            bite = ids[at : at + _CHUNK]
            if int(bite.max(initial=0)) >= vocab_size:
                index = at + int(np.argmax(bite >= vocab_size))
                raise DamagedError(
                    f"{place} is damaged: id {ids[index]:,} at index {first + index:,} is none of the vocabulary's"
                    f" {vocab_size:,}"
                )


def is_store(path: Path) -> bool:
    """True if `path` looks like a token store."""
    return os.path.isfile(path / _MANIFEST)  # unlike Path.is_file, False also for what is no path at all


class StoreWriter:
    """A token store while it is written: ids arrive in order within each split."""

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        self._directory = directory
        self.tokenizer = tokenizer
        self._shards: dict[Split, list[_Shard]] = {}
        self._open: dict[Split, NewFile] = {}

    def append(self, split: Split, ids: Tokens) -> None:
        """Write the next ids of a split. Raises DiskError if they cannot be written."""
        ids = to_token_dtype(ids, self.tokenizer.vocab_size)
        shards = self._shards.setdefault(split, [])
        while len(ids):
            if split not in self._open:
                shards.append(_Shard(f"{split}-{len(shards):05}.npy", 0))
                self._open[split] = NewFile(self._directory / shards[-1].file)
                self._open[split].write(_header(ids.dtype, 0))
            size = shards[-1].tokens
            piece, ids = ids[: SHARD_TOKENS - size], ids[SHARD_TOKENS - size :]
            self._open[split].write(to_little_endian(piece).data.cast("B"))
            shards[-1] = _Shard(shards[-1].file, size + len(piece))
            if shards[-1].tokens == SHARD_TOKENS:
                self._close(split)

    def finish(self, facts: Mapping[Split, SplitStats], *, fingerprint: str, division: SplitSpec) -> None:
        """Write what describes the ids."""
        for split in list(self._open):
            self._close(split)
        parts: dict[Split, _Part] = {}
        for split, known in facts.items():
            parts[split] = _Part(known.characters, known.bytes, known.documents, tuple(self._shards[split]))
            starts = np.asarray(known.document_starts, dtype=np.int64)
            write_file(
                self._directory / _starts_file(split),
                [_header(starts.dtype, len(starts)), to_little_endian(starts).tobytes()],
            )
        write_file(self._directory / "tokenizer.json", self.tokenizer.to_json().encode())
        manifest = _Manifest(
            FORMAT, self.tokenizer.digest, fingerprint, division, parts["train"], parts["val"], parts.get("test")
        )
        write_file(self._directory / _MANIFEST, (json.dumps(asdict(manifest), indent=1) + "\n").encode())

    def abort(self) -> None:
        for file in self._open.values():
            file.abort()

    def _close(self, split: Split) -> None:
        file = self._open.pop(split)
        file.overwrite_header(_header(token_dtype(self.tokenizer.vocab_size), self._shards[split][-1].tokens))
        file.close()


@contextmanager
def new_store(path: Path, tokenizer: Tokenizer, *, replace: bool = False) -> Iterator[StoreWriter]:
    """Write a token store, which appears at `path` whole when the block ends well, or else not at all.

    Raises ExistsError if something is there (`replace`: takes its place), DiskError if it cannot be written.
    """
    with atomic_directory(path, replace=replace) as temporary:
        writer = StoreWriter(temporary, tokenizer)
        try:
            yield writer
        finally:
            writer.abort()


def write_store(
    path: Path,
    tokenizer: Tokenizer,
    tokens: Mapping[Split, Tokens],
    facts: Mapping[Split, SplitStats],
    *,
    fingerprint: str,
    division: SplitSpec,
    replace: bool = False,
) -> None:
    """Write a token store of ids that are in memory. Raises as `new_store` does."""
    with new_store(path, tokenizer, replace=replace) as writer:
        for split, ids in tokens.items():
            writer.append(split, ids)
        writer.finish(facts, fingerprint=fingerprint, division=division)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The type of the ids of a vocabulary: uint16 as long as the largest id fits, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def to_token_dtype(ids: npt.NDArray[Any], vocab_size: int) -> Tokens:
    """`ids` in the type they are stored in. Raises ValueError for an id that could wrap around in it."""
    if ids.size and (largest := int(ids.max())) >= vocab_size:
        raise ValueError(f"id {largest} is outside the vocabulary of {vocab_size}")
    return ids.astype(token_dtype(vocab_size), copy=False)


def _starts_file(split: Split) -> str:
    return f"{split}-documents.npy"


def to_little_endian(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`values` as they lie in a file: little-endian."""
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))


def _header(dtype: np.dtype[Any], size: int) -> bytes:
    """The start of a .npy file. NumPy leaves room in it, so that its length does not depend on `size`."""
    header = io.BytesIO()
    description = {"descr": dtype.newbyteorder("<").str, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()


def _load(path: Path, into: npt.NDArray[Any], *, of: int | None = None, skip: int = 0) -> None:
    """Read the .npy file `path` into an array of the very shape and type it should have, without pickles.

    Or, of an array of `of` numbers, those after the first `skip`, as many as there is room for.
    """
    size = len(into) if of is None else of
    try:
        with path.open("rb") as stream:
            found, wanted = _read_header(stream), _describe(into.dtype, size)
            if found != wanted:
                raise DamagedError(f"{path} is damaged: it holds {found}, not {wanted}")
            stream.seek(skip * into.itemsize, os.SEEK_CUR)
            read = stream.readinto(into.data.cast("B")) if len(into) else 0
            if read < into.nbytes:
                raise DamagedError(f"{path} is damaged: it ends after {read:,} of {into.nbytes:,} bytes of ids")
            if skip + len(into) == size and stream.read(1):
                raise DamagedError(f"{path} is damaged: something follows its {size:,} ids")
    except (ValueError, OSError, EOFError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error


def _map(path: Path, dtype: np.dtype[Any], size: int) -> Tokens:
    """The ids of the .npy file `path`, mapped. Raises DamagedError as `_load` does."""
    _load(path, np.empty(0, dtype=dtype), of=size)
    with path.open("rb") as stream:
        _read_header(stream)
        offset = stream.tell()
    if path.stat().st_size != offset + size * dtype.itemsize:
        raise DamagedError(f"{path} is damaged: it does not end with its {size:,} ids")
    if not size:
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(size,)).view(np.ndarray)


def _require_size(path: Path, least: int) -> None:
    """Raise DamagedError for a file that cannot hold so many bytes, before memory is taken for them."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DamagedError(f"{path} is damaged: {error.strerror}") from error
    if size < least:
        raise DamagedError(f"{path} is damaged: it has {size:,} bytes, which cannot be {least:,} bytes of an array")


def _read_header(stream: IO[bytes]) -> str:
    """Parse the header of a `.npy` file. NumPy's own reader fails in many ways on a damaged one, so it is not used."""
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"it is of version {version} of the .npy format, not (1, 0)")
    match = _HEADER.fullmatch(stream.read(int.from_bytes(stream.read(2), "little")))
    if match is None:
        raise ValueError("its header does not say what a list of numbers is")
    return match[1].decode()


def _describe(dtype: np.dtype[Any], size: int) -> str:
    """The same of the array that there should be."""
    return f"'descr': '{dtype.newbyteorder('<').str}', 'fortran_order': False, 'shape': ({size},)"


def _facts(path: Path, split: Split, part: _Part) -> SplitStats:
    _require_size(path / _starts_file(split), 8 * part.documents)
    starts = np.empty(part.documents, dtype=np.int64)
    _load(path / _starts_file(split), starts)
    if len(starts) and not (starts[0] >= 0 and starts[-1] < part.tokens and bool((np.diff(starts) >= 0).all())):
        raise DamagedError(f"{path / _starts_file(split)} is damaged: it names tokens that the split has not")
    return SplitStats(part.characters, part.bytes, part.tokens, part.documents, starts)


def _parse(path: Path, data: bytes) -> _Manifest:
    try:
        return TypeAdapter(_Manifest).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DamagedError(f"{path / _MANIFEST} is not a token store's: {key}: {first['msg']}") from error
