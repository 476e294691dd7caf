"""Compressed text, expanded piece by piece; memory, expansion and input without output are bounded."""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

from gpt_cli.errors import UserError, require_package
from gpt_cli.files.durable import CHUNK, read_chunks
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.terminal.words import format_size

_SUFFIXES = (".bz2", ".gz", ".xz", ".zst")
_MAX_EXPANSION = 200  # text compresses 3 to 10 times; a log of repeated lines, 100 times; a bomb, 1,000 times and more
ALWAYS_ALLOWED = 32 << 20  # bytes
_MAX_INPUT_WITHOUT_TEXT = 4 << 20  # compressed bytes without any text: empty members, frames to be skipped
_MAX_MEMORY = 128 << 20  # bytes of a dictionary or window: `xz -9` asks for 65 MB, `zstd --ultra -22` for 128 MiB
_INPUT_SIZE = 1024  # compressed bytes at a time: zstd's runs make 131,072 bytes of each 4


class _Decoder(Protocol):
    """Decompresses one member, stream or frame, of which a file may have several."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: Any, /) -> bytes: ...


def is_compressed(path: Path) -> bool:
    """True if `expand` supports the suffix of `path`."""
    return path.suffix.lower() in _SUFFIXES


def expand(path: Path) -> Iterator[bytes]:
    """The bytes that the compressed file `path` expands to, in pieces of at most CHUNK bytes.

    Raises UserError for a damaged or cut-off file, for one that has at any place expanded to more than 200 times what
    was read of it (32 MiB are always allowed), that goes on for 4 MiB without any text, or that asks for more than 128
    MiB of memory.
    """
    new_decoder = _new_decoder(path)
    with translate_os_errors("read", path):
        size = consumed = last_text = 0
        buffer = b""
        for piece, input_size in _decompress_file(path, new_decoder):
            size += len(piece)
            consumed += input_size
            last_text = consumed if piece else last_text
            limit = max(ALWAYS_ALLOWED, _MAX_EXPANSION * consumed)
            if size > limit:
                raise UserError(
                    f"{path} expands to more than {format_size(limit)} in its first {format_size(consumed)}: that is no"
                    " ordinary text",
                    hint="if you trust it, decompress it yourself and give the result",
                )
            if consumed - last_text > _MAX_INPUT_WITHOUT_TEXT:
                raise UserError(f"{path} goes on for {format_size(consumed - last_text)} without any text")
            buffer = buffer + piece if buffer else piece
            if len(buffer) >= CHUNK:
                whole = len(buffer) - len(buffer) % CHUNK
                for start in range(0, whole, CHUNK):
                    yield buffer[start : start + CHUNK]
                buffer = buffer[whole:]
        if buffer:
            yield buffer


def _decompress_file(path: Path, new_decoder: Callable[[], _Decoder]) -> Iterator[tuple[bytes, int]]:
    """Yield (decompressed piece, compressed bytes read for it). Raises OSError, and UserError for damage."""
    decoder: _Decoder | None = None
    for chunk in read_chunks(path):
        for start in range(0, len(chunk), _INPUT_SIZE):
            data = chunk[start : start + _INPUT_SIZE]
            yield b"", len(data)
            while decoder is not None or (data := data.lstrip(b"\0")):  # gzip and xz may be padded with zeros
                decoder = decoder or new_decoder()
                try:
                    for piece in _decompress(decoder, data):
                        yield piece, 0
                except (MemoryError, GeneratorExit):
                    raise
                except Exception as error:  # the errors of the four libraries have no base in common
                    raise _damage_error(path, str(error)) from error
                if not decoder.eof:
                    break
                data, decoder = decoder.unused_data, None
    if decoder is not None:
        raise _damage_error(path, "it ends in the middle")


def _decompress(decoder: _Decoder, data: bytes) -> Iterator[bytes]:
    """`data` expanded, in pieces of at most CHUNK bytes where the library can stop: 39 bytes of bzip2 can be 45 MB."""
    if not isinstance(decoder, bz2.BZ2Decompressor | lzma.LZMADecompressor):
        yield decoder.decompress(data)
        return
    yield decoder.decompress(data, CHUNK)
    while not (decoder.eof or decoder.needs_input):
        yield decoder.decompress(b"", CHUNK)


def _damage_error(path: Path, reason: str) -> UserError:
    if "too much memory" in reason or "emory usage limit" in reason:  # of zstd, and of liblzma
        return UserError(
            f"expanding {path} takes more than {format_size(_MAX_MEMORY)} of memory, the most that is allowed here",
            hint="if you trust it, decompress it yourself and give the result",
        )
    return UserError(f"{path} is not a whole {path.suffix} file: {reason}")


def _new_decoder(path: Path) -> Callable[[], _Decoder]:
    """The constructor of decoders for the suffix of `path`."""
    match path.suffix.lower():
        case ".bz2":
            return bz2.BZ2Decompressor
        case ".gz":
            return partial(zlib.decompressobj, 16 + zlib.MAX_WBITS)  # 16: with gzip's header and sum
        case ".xz":
            return partial(lzma.LZMADecompressor, memlimit=_MAX_MEMORY)
    zstandard = require_package("zstandard", f"reading {path} needs", "gpt-cli[data]")
    return cast(Callable[[], _Decoder], zstandard.ZstdDecompressor(max_window_size=_MAX_MEMORY).decompressobj)
