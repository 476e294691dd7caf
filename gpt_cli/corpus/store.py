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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.mapped import MappedTokens
from gpt_cli.corpus.split import SPLITS, Split
from gpt_cli.errors import RequestError
from gpt_cli.files import DamagedError, atomic_directory, read_directory, write_file
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.literals import SplitBy
from gpt_cli.tokenizer import Tokenizer, load_tokenizer

Tokens = npt.NDArray[np.uint16 | np.uint32]

FORMAT: Final = "gpt-tokens-2"
SHARD_TOKENS = 100_000_000
_MANIFEST = "tokens.json"
_CHUNK = 1 << 22  # ids that are checked at once
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
    """The keys of `data` that a store was split by."""

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
    """A verified token store: every file has its checksum, and the tokens belong to the tokenizer."""

    path: Path
    tokenizer: Tokenizer
    stats: dict[Split, SplitStats]
    """Statistics of each split in the store; the test split is optional."""
    fingerprint: str
    """sha256 (hex) of the text that the tokens encode."""
    division: SplitSpec
    _manifest: _Manifest

    @classmethod
    def open(cls, path: Path) -> "TokenStore":
        """Open and verify the store at `path`. Raises RequestError if there is none, DamagedError if it was changed."""
        if not is_store(path):
            raise RequestError(f"{path} is not a token store", hint="gpt tokenize CORPUS --out DIR makes one")
        manifest = _parse(path, read_directory(path, (_MANIFEST,))[_MANIFEST])
        tokenizer = load_tokenizer(path / "tokenizer.json")
        if tokenizer.digest != manifest.tokenizer_sha256:
            raise DamagedError(f"{path} is damaged: its tokens were made with another tokenizer.json")
        stats = {
            split: _read_stats(path, split, part) for split in SPLITS if (part := manifest.part(split)) is not None
        }
        return cls(path, tokenizer, stats, manifest.fingerprint, manifest.division, manifest)

    def tokens(self, split: Split) -> Tokens:
        """(n,) ids of a split, in memory.

        Raises RequestError for a split that is not in the store, DamagedError for files that do not match its manifest.
        """
        files, dtype = self._files(split), token_dtype(self.tokenizer.vocab_size)
        for path, size in files:
            _require_size(path, size * dtype.itemsize)
        tokens: Tokens = np.empty(sum(size for _, size in files), dtype=dtype)
        start = 0
        for path, size in files:
            chunk = tokens[start : start + size]
            _load(path, chunk)
            self._check_ids(path, chunk)
            start += size
        return tokens

    def mapped(self, split: Split) -> MappedTokens:
        """(n,) ids of a split, memory-mapped. Raises as `tokens` does.

        A store that is replaced meanwhile stays readable; truncating its files kills the process (SIGBUS).
        """
        pieces: list[Tokens] = []
        for path, size in self._files(split):
            pieces.append(_map(path, token_dtype(self.tokenizer.vocab_size), size))
            self._check_ids(path, pieces[-1])
        return MappedTokens(pieces)

    def read(self, split: Split, start: int, stop: int) -> Tokens:
        """(stop - start,) ids of a split from index `start` on, fewer at its end. Raises as `tokens` does."""
        dtype = token_dtype(self.tokenizer.vocab_size)
        pieces: list[Tokens] = [np.empty(0, dtype=dtype)]
        for path, size in self._files(split):
            first, last = max(0, start), min(stop, size)
            if first < last:
                chunk: Tokens = np.empty(last - first, dtype=dtype)
                _load(path, chunk, total=size, skip=first)
                self._check_ids(path, chunk, first)
                pieces.append(chunk)
            start, stop = start - size, stop - size
        return np.concatenate(pieces)

    def _files(self, split: Split) -> list[tuple[Path, int]]:
        """The files of a split, each with its number of ids. Raises RequestError if the store has no such split."""
        part = self._manifest.part(split)
        if part is None:
            hint = f"gpt tokenize TEXT --{split}-fraction 0.05 makes a store that has one"
            raise RequestError(f"{self.path} has no {split} split", hint=hint)
        return [(self.path / Path(shard.file).name, shard.tokens) for shard in part.shards]

    def _check_ids(self, path: Path, ids: Tokens, first: int = 0) -> None:
        vocab_size = self.tokenizer.vocab_size
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            if int(chunk.max(initial=0)) >= vocab_size:
                index = start + int(np.argmax(chunk >= vocab_size))
                raise DamagedError(
                    f"{path} is damaged: id {ids[index]:,} at index {first + index:,} is none of the vocabulary's"
                    f" {vocab_size:,}"
                )


def is_store(path: Path) -> bool:
    """True if `path` looks like a token store."""
    return os.path.isfile(path / _MANIFEST)  # unlike Path.is_file, False for an invalid path


class StoreWriter:
    """Writes a token store; the ids of each split are appended in order."""

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        self._directory = directory
        self.tokenizer = tokenizer
        self._shards: dict[Split, list[_Shard]] = {}
        self._open: dict[Split, BinaryIO] = {}

    def append(self, split: Split, ids: Tokens) -> None:
        """Write the next ids of a split. Raises DiskError if they cannot be written."""
        ids = to_token_dtype(ids, self.tokenizer.vocab_size)
        shards = self._shards.setdefault(split, [])
        while len(ids):
            if split not in self._open:
                shards.append(_Shard(f"{split}-{len(shards):05}.npy", 0))
            size = shards[-1].tokens
            piece, ids = ids[: SHARD_TOKENS - size], ids[SHARD_TOKENS - size :]
            path = self._directory / shards[-1].file
            with translate_os_errors("write", path):
                if split not in self._open:
                    self._open[split] = path.open("xb")
                    self._open[split].write(_header(ids.dtype, 0))
                self._open[split].write(to_little_endian(piece).data.cast("B"))
            shards[-1] = _Shard(shards[-1].file, size + len(piece))
            if shards[-1].tokens == SHARD_TOKENS:
                self._close(split)

    def finish(self, stats: Mapping[Split, SplitStats], *, fingerprint: str, division: SplitSpec) -> None:
        """Write the document starts, the tokenizer and the manifest."""
        for split in list(self._open):
            self._close(split)
        parts: dict[Split, _Part] = {}
        for split, of_split in stats.items():
            parts[split] = _Part(of_split.characters, of_split.bytes, of_split.documents, tuple(self._shards[split]))
            starts = np.asarray(of_split.document_starts, dtype=np.int64)
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
            with suppress(OSError):  # of what it has not written yet
                file.close()

    def _close(self, split: Split) -> None:
        shard = self._shards[split][-1]
        with translate_os_errors("write", self._directory / shard.file), self._open.pop(split) as file:
            file.seek(0)
            file.write(_header(token_dtype(self.tokenizer.vocab_size), shard.tokens))


@contextmanager
def new_store(path: Path, tokenizer: Tokenizer, *, replace: bool = False) -> Iterator[StoreWriter]:
    """Write a token store, which appears at `path` when the context exits without an exception, or else not at all.

    Raises ExistsError if `path` exists, unless `replace`; DiskError if it cannot be written.
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
    stats: Mapping[Split, SplitStats],
    *,
    fingerprint: str,
    division: SplitSpec,
    replace: bool = False,
) -> None:
    """Write a token store of ids that are in memory. Raises as `new_store` does."""
    with new_store(path, tokenizer, replace=replace) as writer:
        for split, ids in tokens.items():
            writer.append(split, ids)
        writer.finish(stats, fingerprint=fingerprint, division=division)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The type of the ids of a vocabulary: uint16 as long as the largest id fits, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def to_token_dtype(ids: npt.NDArray[Any], vocab_size: int) -> Tokens:
    """`ids` in the type of a store. Raises ValueError for an id outside the vocabulary."""
    if ids.size and (largest := int(ids.max())) >= vocab_size:
        raise ValueError(f"id {largest} is outside the vocabulary of {vocab_size}")
    return ids.astype(token_dtype(vocab_size), copy=False)


def _starts_file(split: Split) -> str:
    return f"{split}-documents.npy"


def to_little_endian(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`values`, contiguous and little-endian, as they are stored."""
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))


def _header(dtype: np.dtype[Any], size: int) -> bytes:
    """The header of a .npy file. NumPy pads it, so that its length does not depend on `size`."""
    header = io.BytesIO()
    description = {"descr": dtype.newbyteorder("<").str, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()


def _load(path: Path, out: npt.NDArray[Any], *, total: int | None = None, skip: int = 0) -> None:
    """Read `len(out)` numbers of the .npy file `path`, from index `skip` on, into `out`.

    `total`: length of the array in the file; None: that of `out`. Raises DamagedError for another length or type.
    """
    size = len(out) if total is None else total
    try:
        with path.open("rb") as stream:
            actual, expected = _read_header(stream), _describe(out.dtype, size)
            if actual != expected:
                raise DamagedError(f"{path} is damaged: it holds {actual}, not {expected}")
            stream.seek(skip * out.itemsize, os.SEEK_CUR)
            n_read = stream.readinto(out.data.cast("B")) if len(out) else 0
            if n_read < out.nbytes:
                raise DamagedError(f"{path} is damaged: it ends after {n_read:,} of {out.nbytes:,} bytes of ids")
            if skip + len(out) == size and stream.read(1):
                raise DamagedError(f"{path} is damaged: something follows its {size:,} ids")
    except (ValueError, OSError, EOFError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error


def _map(path: Path, dtype: np.dtype[Any], size: int) -> Tokens:
    """The ids of the .npy file `path`, mapped. Raises DamagedError as `_load` does."""
    _load(path, np.empty(0, dtype=dtype), total=size)
    with path.open("rb") as stream:
        _read_header(stream)
        offset = stream.tell()
    if path.stat().st_size != offset + size * dtype.itemsize:
        raise DamagedError(f"{path} is damaged: it does not end with its {size:,} ids")
    if not size:
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(size,)).view(np.ndarray)


def _require_size(path: Path, min_size: int) -> None:
    """Raise DamagedError for a file of fewer bytes; called before memory for them is allocated."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DamagedError(f"{path} is damaged: {error.strerror}") from error
    if size < min_size:
        raise DamagedError(f"{path} is damaged: it has {size:,} bytes, which cannot be {min_size:,} bytes of an array")


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
    """The header fields of an array of that type and size, as `_read_header` returns them."""
    return f"'descr': '{dtype.newbyteorder('<').str}', 'fortran_order': False, 'shape': ({size},)"


def _read_stats(path: Path, split: Split, part: _Part) -> SplitStats:
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
