"""Compressed text, expanded piece by piece and never without bound."""

import gzip
import importlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from gpt_cli.errors import UserError
from gpt_cli.files.disk import format_size, reported

_MOST_EXPANSION = 200  # text compresses 3 to 10 times; a log of repeated lines, 100 times; a bomb, 1,000 times and more
_ALWAYS_ALLOWED = 1 << 30  # bytes
_ZSTD_BITE = 4096  # compressed bytes at a time, of which each can become at most 32 kB


def is_compressed(path: Path) -> bool:
    """Whether the name says that the file is compressed in a way that `expand` understands."""
    return path.suffix.lower() in _READERS


def expand(path: Path) -> Iterator[bytes]:
    """What the compressed file `path` expands to, in pieces.

    Raises UserError for a damaged or cut-off file, and for one that expands to more than 200 times its size
    (1 GiB is always allowed).
    """
    with reported("read", path):
        limit = max(_ALWAYS_ALLOWED, _MOST_EXPANSION * path.stat().st_size)
        size = 0
        try:
            for piece in _READERS[path.suffix.lower()](path):
                size += len(piece)
                if size > limit:
                    raise UserError(
                        f"{path} expands to more than {format_size(limit)}: that is no ordinary text",
                        hint="if you trust it, decompress it yourself and give the result",
                    )
                yield piece
        except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
            raise UserError(f"{path} is not a whole {path.suffix} file: {error}") from error


def _read_gzip(path: Path) -> Iterator[bytes]:
    with gzip.open(path) as stream:
        yield from _pieces(cast(IO[bytes], stream))


def _read_xz(path: Path) -> Iterator[bytes]:
    with lzma.open(path) as stream:
        yield from _pieces(stream)


def _read_zstd(path: Path) -> Iterator[bytes]:
    try:
        zstandard = importlib.import_module("zstandard")  # optional: only who has .zst files needs it
    except ImportError as error:
        raise UserError(f"reading {path} needs the package zstandard", hint="pip install zstandard") from error
    frame = None
    with path.open("rb") as stream:
        while data := stream.read(_ZSTD_BITE):
            while data:  # a file may hold several frames, one after the other
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    yield frame.decompress(data)
                except zstandard.ZstdError as error:
                    raise UserError(f"{path} is not a whole .zst file: {error}") from error
                data = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("it ends in the middle")


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while piece := stream.read(1 << 20):
        yield piece


_READERS: dict[str, Callable[[Path], Iterator[bytes]]] = {
    ".gz": _read_gzip,
    ".xz": _read_xz,
    ".zst": _read_zstd,
}
