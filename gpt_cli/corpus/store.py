"""Tokens on the disk: a directory with checksums, beside the tokenizer that made them.

    tokens.json  tokenizer.json  train-00000.npy ...  train-documents.npy  (the same for val, test)  SHA256SUMS

The arrays are plain .npy files, which any NumPy reads without us: ids, at most 100 million a file, and the index of
the first id of each document. A store is opened without reading its ids; their sums are checked where they are loaded.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.blocks import SPLITS, Split
from gpt_cli.corpus.sources import find_path
from gpt_cli.corpus.tokens import MappedTokens, Tokens, to_token_dtype, token_dtype
from gpt_cli.errors import RequestError
from gpt_cli.files import DamagedError, atomic_directory, read_directory, read_sums, write_file
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.literals import SplitBy
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.loader import parse_tokenizer

FORMAT: Final = "gpt-tokens-2"
SHARD_TOKENS = 100_000_000
_MANIFEST, _TOKENIZER, _STARTS = "tokens.json", "tokenizer.json", "-documents.npy"
_CHUNK = 1 << 20  # bytes of ids that are verified at once


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
    """A token store, verified but for its ids, which are verified as they are loaded."""

    path: Path
    tokenizer: Tokenizer
    stats: dict[Split, SplitStats]
    """Statistics of each split in the store; the test split is optional."""
    fingerprint: str
    """sha256 (hex) of the text that the tokens encode."""
    division: SplitSpec
    _manifest: _Manifest
    _sums: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> "TokenStore":
        """Open the store at `path`. Raises RequestError if there is none, DamagedError if it was changed."""
        if not is_store(path):
            raise RequestError(f"{path} is not a token store")
        sums = read_sums(path)
        names = [_MANIFEST, _TOKENIZER, *(name for name in sums if name.endswith(_STARTS))]
        files = read_directory(path, names, others=False)
        manifest = _parse_manifest(path, files[_MANIFEST])
        with _damage(path / _TOKENIZER):
            tokenizer = parse_tokenizer(files[_TOKENIZER].decode())
        if tokenizer.digest != manifest.tokenizer_sha256:
            raise DamagedError(f"{path} is damaged: its tokens were made with another {_TOKENIZER}")
        stats = {
            split: _stats(path, split, part, files) for split in SPLITS if (part := manifest.part(split)) is not None
        }
        return cls(path, tokenizer, stats, manifest.fingerprint, manifest.division, manifest, sums)

    def tokens(self, split: Split) -> Tokens:
        """Load the (n,) ids of a split into memory.

        Raises RequestError for a split that is not in the store, DamagedError for files that were changed.
        """
        arrays = self._map(split)
        tokens: Tokens = np.empty(sum(len(array) for _, array in arrays), dtype=token_dtype(self.tokenizer.vocab_size))
        start = 0
        for path, array in arrays:
            for chunk in self._verified(path, array):
                tokens[start : start + len(chunk)] = chunk
                start += len(chunk)
        return tokens

    def mapped(self, split: Split, *, verify: bool = True) -> MappedTokens:
        """Map the (n,) ids of a split into memory; without `verify`, nothing is read. Raises as `tokens` does.

        A store that is replaced meanwhile stays readable; truncating its files kills the process (SIGBUS).
        """
        arrays = self._map(split)
        for path, array in arrays if verify else ():
            for _ in self._verified(path, array):
                pass
        pieces = [array.view(np.ndarray) for _, array in arrays]
        return MappedTokens(pieces, None if verify else self.tokenizer.vocab_size)

    def _map(self, split: Split) -> list[tuple[Path, Any]]:
        """The files of a split, and their arrays as `np.memmap`. Raises as `tokens` does."""
        part, arrays = self._manifest.part(split), []
        if part is None:
            raise RequestError(f"{self.path} has no {split} split", keys=[f"data.{split}_fraction"])
        for shard in part.shards:
            path = self.path / shard.file
            if shard.file not in self._sums or path.is_symlink():
                raise DamagedError(f"{path} is not a file of this token store")
            with _damage(path):
                array = np.load(path, mmap_mode="r", allow_pickle=False)
                _check_array(array, token_dtype(self.tokenizer.vocab_size), shard.tokens)
                if path.stat().st_size != array.offset + array.nbytes:
                    raise ValueError(f"it does not end with its {shard.tokens:,} ids")
            arrays.append((path, array))
        return arrays

    def _verified(self, path: Path, array: Any) -> Iterator[Tokens]:
        """Yield the ids of a file in parts, each valid until the next; at the end the sum of the file is right.

        They are read, as pages that are mapped would count as memory of this process.
        """
        buffer: Tokens = np.empty(_CHUNK // array.itemsize, dtype=array.dtype)
        with _damage(path), path.open("rb") as stream:
            digest = hashlib.sha256(stream.read(array.offset))
            for start in range(0, len(array), len(buffer)):
                chunk = buffer[: len(array) - start]
                if stream.readinto(chunk.data.cast("B")) < chunk.nbytes:
                    raise ValueError("it ends too soon")
                digest.update(chunk.data)
                if int(chunk.max()) >= self.tokenizer.vocab_size:
                    index = int(np.argmax(chunk >= self.tokenizer.vocab_size))
                    raise ValueError(f"id {chunk[index]:,} at index {start + index:,} is none of the vocabulary's")
                yield chunk
            if digest.hexdigest() != self._sums[path.name]:
                raise ValueError("it does not match its SHA-256")


def is_store(path: Path) -> bool:
    """True if `path` looks like a token store."""
    return os.path.isfile(path / _MANIFEST)  # unlike Path.is_file, False for an invalid path


def find_store(source: str | Sequence[str] | None) -> Path | None:
    """The token store that a data.source names; None for texts: standard input is one, whatever is called `-`."""
    if not isinstance(source, str) or source == "-":
        return None
    path = find_path(source)
    return path if is_store(path) else None


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
            starts = to_little_endian(np.asarray(of_split.document_starts, dtype=np.int64))
            write_file(self._directory / f"{split}{_STARTS}", [_header(starts.dtype, len(starts)), starts.tobytes()])
        write_file(self._directory / _TOKENIZER, self.tokenizer.to_json().encode())
        manifest = _Manifest(
            FORMAT, self.tokenizer.digest, fingerprint, division, parts["train"], parts["val"], parts.get("test")
        )
        write_file(self._directory / _MANIFEST, (json.dumps(asdict(manifest), indent=1) + "\n").encode())

    def abort(self) -> None:
        for file in self._open.values():
            with suppress(OSError):  # of what it has not written yet
                file.close()

    def _close(self, split: Split) -> None:
        """Close the file of a split, whose header gets its number of ids: NumPy's has the same length for any."""
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


def to_little_endian(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `values`, contiguous and little-endian, as they are stored."""
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))


def _header(dtype: np.dtype[Any], size: int) -> bytes:
    header = io.BytesIO()
    description = {"descr": dtype.newbyteorder("<").str, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()


def _check_array(array: npt.NDArray[Any], dtype: np.dtype[Any], size: int) -> None:
    if (array.shape, array.dtype) != ((size,), dtype):
        raise ValueError(f"it holds {array.dtype} {array.shape}, not {dtype} ({size},)")


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Raise DamagedError for whatever NumPy raises for bytes that are not an array, and for what cannot be read."""
    try:
        yield
    except (DamagedError, MemoryError, GeneratorExit):
        raise
    except Exception as error:
        raise DamagedError(f"{path} is damaged: {error}") from error


def _stats(path: Path, split: Split, part: _Part, files: Mapping[str, bytes]) -> SplitStats:
    name = f"{split}{_STARTS}"
    with _damage(path / name):
        stream = io.BytesIO(files[name])
        starts = np.load(stream, allow_pickle=False)
        _check_array(starts, np.dtype(np.int64), part.documents)
        if stream.read(1):
            raise ValueError(f"it does not end with its {part.documents:,} numbers")
        if len(starts) and not (starts[0] >= 0 and starts[-1] < part.tokens and bool((np.diff(starts) >= 0).all())):
            raise ValueError("it names tokens outside of the split")
    return SplitStats(part.characters, part.bytes, part.tokens, part.documents, starts)


def _parse_manifest(path: Path, data: bytes) -> _Manifest:
    try:
        return TypeAdapter(_Manifest).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DamagedError(f"{path / _MANIFEST} is not a token store's: {key}: {first['msg']}") from error
