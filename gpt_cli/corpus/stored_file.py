"""A stored file, or a member of an archive, as bytes that can be read repeatedly, decompressed by its suffix."""

import bz2
import lzma
import stat
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

from gpt_cli.errors import UserError, require_package
from gpt_cli.files.durable import CHUNK, read_chunks
from gpt_cli.files.os_errors import translate_os_errors

_SUFFIXES = (".bz2", ".gz", ".xz", ".zst")
_MAX_MEMORY = 128 << 20  # bytes of a dictionary or window: `xz -9` asks for 65 MB, `zstd --ultra -22` for 128 MiB
_INPUT = 1024  # compressed bytes at a time: zstd's runs make 131,072 bytes of each 4
_IN_MEMORY = 16 << 20  # bytes of a spooled stream; more is in a temporary file


@dataclass(frozen=True)
class StoredFile:
    """A file whose bytes can be read repeatedly."""

    path: Path
    """Its name for messages, whose suffix decides how it is read; that of a member follows the archive's."""
    size: int | None
    """Bytes as they are stored; None for a pipe."""
    read_stored: Callable[[], Iterable[bytes]]
    """Returns its bytes as they are stored, in pieces. Raises UserError."""

    @classmethod
    def at(cls, path: Path) -> Self:
        """The file at `path`; a pipe, such as a shell's <(command), is spooled when it is read."""
        with translate_os_errors("read", path):
            status = path.stat()
        if stat.S_ISFIFO(status.st_mode):
            return cls(path, None, rewindable(lambda: _read_chunks(path, only_regular=False)))
        return cls(path, status.st_size, partial(_read_chunks, path))

    def pieces(self) -> Iterable[bytes]:
        """Its bytes, decompressed. Raises UserError."""
        stored = self.read_stored()
        return expand(self.path, stored) if is_compressed(self.path) else stored

    def open(self) -> IO[bytes]:
        """Open it for reading at any place: a copy in a temporary file if it is compressed or in an archive."""
        if self.path.is_file() and not is_compressed(self.path):
            return self.path.open("rb")
        return spool(self.pieces())


def inner_suffix(path: Path) -> str:
    """The suffix without that of a compression: `.jsonl` for `stories.jsonl.gz`, and for its other name, `.ndjson`."""
    suffix = (Path(path.stem) if is_compressed(path) else path).suffix.lower()
    return ".jsonl" if suffix == ".ndjson" else suffix


def is_compressed(path: Path) -> bool:
    """True if `expand` supports the suffix of `path`."""
    return path.suffix.lower() in _SUFFIXES


def spool(pieces: Iterable[bytes]) -> IO[bytes]:
    """A file that holds `pieces` until it is closed, in memory or, if they are many, on the disk."""
    file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the caller's
    try:
        with translate_os_errors("write", Path(tempfile.gettempdir())):
            for piece in pieces:  # `writelines` would hold them all
                file.write(piece)
            file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def rewindable(read: Callable[[], Iterable[bytes]]) -> Callable[[], Iterator[bytes]]:
    """A function that reads a one-time stream from its start each time."""
    spools: list[IO[bytes]] = []

    def pieces() -> Iterator[bytes]:
        if not spools:
            spools.append(spool(read()))
            weakref.finalize(pieces, spools[0].close)
        spools[0].seek(0)
        yield from iter(partial(spools[0].read, CHUNK), b"")

    return pieces


def expand(path: Path, stored: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes that the compressed file `path` expands to, in pieces of about CHUNK bytes.

    Raises UserError for a file that is damaged, cut off, or asks for more than _MAX_MEMORY.
    """
    new_decoder, decoder = _new_decoder(path), None
    expanded, size = list[bytes](), 0
    for data in (chunk[at : at + _INPUT] for chunk in stored for at in range(0, len(chunk), _INPUT)):
        while decoder is not None or (data := data.lstrip(b"\0")):  # gzip and xz may be padded with zeros
            decoder = decoder or new_decoder()
            for piece in _decompress(path, decoder, data):
                expanded.append(piece)
                if (size := size + len(piece)) >= CHUNK:
                    yield b"".join(expanded)
                    expanded, size = [], 0
            if not decoder.eof:
                break
            data, decoder = decoder.unused_data, None  # of which a file may have several
    if decoder is not None:
        raise UserError(f"{path} is not a whole {path.suffix} file: it ends in the middle")
    if expanded:
        yield b"".join(expanded)


def _decompress(path: Path, decoder: Any, data: bytes) -> Iterator[bytes]:
    """`data` expanded, at most CHUNK bytes at once where the library can stop: 39 bytes of bzip2 can be 45 MB."""
    options = (CHUNK,) if hasattr(decoder, "needs_input") else ()
    try:
        yield decoder.decompress(data, *options)
        while options and not (decoder.eof or decoder.needs_input):
            yield decoder.decompress(b"", *options)
    except (MemoryError, GeneratorExit):
        raise
    except Exception as error:  # the errors of the four libraries have no base in common
        raise UserError(f"{path} is not a {path.suffix} file that can be read: {error}") from error


def _new_decoder(path: Path) -> Callable[[], Any]:
    """The constructor of decoders of one member, stream or frame, for the suffix of `path`."""
    match path.suffix.lower():
        case ".bz2":
            return bz2.BZ2Decompressor
        case ".gz" | ".tgz":
            return partial(zlib.decompressobj, 16 + zlib.MAX_WBITS)  # 16: with gzip's header and sum
        case ".xz":
            return partial(lzma.LZMADecompressor, memlimit=_MAX_MEMORY)
    zstandard = require_package("zstandard", f"reading {path} needs", "gpt-cli[data]")
    new: Callable[[], Any] = zstandard.ZstdDecompressor(max_window_size=_MAX_MEMORY).decompressobj
    return new


def _read_chunks(path: Path, *, only_regular: bool = True) -> Iterator[bytes]:
    with translate_os_errors("read", path):
        yield from read_chunks(path, only_regular=only_regular)
