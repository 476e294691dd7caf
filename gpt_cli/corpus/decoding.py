"""Strict decoding of text in pieces; errors have the offset of the byte."""

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from gpt_cli.errors import Notify, RequestError, UserError

_MARK = "\ufeff"
_NEWLINE = b"\n"
_UNSUPPORTED = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7"})


_FORMATS = {
    # what such a file begins with, what it is, what to do about it
    b"\x1f\x8b\x08": ("gzip", "decompress it, or call it by a name that ends in .gz"),
    b"\xfd7zXZ\0": ("xz", "decompress it, or call it by a name that ends in .xz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "decompress it, or call it by a name that ends in .zst"),
    b"PK\x03\x04": ("zip", "unpack it, and give the texts that are in it"),
    b"%PDF-": ("PDF", "make a text of it, as pdftotext does"),
    b"PAR1\x15": ("Parquet", "call it by a name that ends in .parquet"),
}
_MAGICS = tuple(_FORMATS)
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


class BinaryError(UserError):
    """Contents that are no text: with a zero character, or those of a known format."""


class EncodingError(UserError):
    """Contents in another encoding than the one that is asked for. The hint names the option for it."""


def check_encoding(encoding: str) -> str:
    """Python's own name of a text encoding. Raises RequestError for one it does not know."""
    try:
        "".encode(encoding)  # unlike codecs.lookup, it refuses base64, rot13 and the like
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError):
        name = "undefined"
    if name in _UNSUPPORTED:
        raise RequestError(
            f"'{encoding}' is not an encoding of text", hint="utf-8, utf-16, latin-1, cp1252 and shift_jis are some"
        )
    return name


def decode(pieces: Iterable[bytes], name: str, encoding: str, note: Notify) -> Iterator[str]:
    """The text of `pieces`, newlines as they are, without a byte order mark, which is noted.

    Raises UserError, with the offset of the byte, for text that is empty or not in `encoding`, and BinaryError for one
    with a zero character, or in a format that is no text.
    """
    return (text for text, _ in _decode(pieces, name, encoding, note))


def decode_utf8(pieces: Iterable[bytes], name: str, encoding: str, note: Notify) -> Iterator[bytes]:
    """As `decode`, but in UTF-8, in pieces of whole characters; UTF-8 input is checked and not encoded again."""
    if check_encoding(encoding) == "utf-8":
        return (data for _, data in _decode(pieces, name, encoding, note))
    return (text.encode() for text in decode(pieces, name, encoding, note))


def _decode(pieces: Iterable[bytes], name: str, encoding: str, note: Notify) -> Iterator[tuple[str, bytes]]:
    """Yield (text, its bytes in `encoding`) for each piece."""
    encoding = check_encoding(encoding)
    stream = codecs.getincrementaldecoder(encoding)()
    offset = lines = 0  # bytes and lines that `stream` has consumed
    as_utf8 = _Utf8Check() if encoding != "utf-8" else None
    empty = first = True
    for piece in chain(filter(None, pieces), [b""]):  # an empty one is the end
        if offset == 0 and piece.startswith(_MAGICS):
            found, way_out = next(kind for magic, kind in _FORMATS.items() if piece.startswith(magic))
            raise BinaryError(f"{name} is {found}, not text", hint=way_out)
        if offset == 0 and encoding == "utf-8" and piece.startswith(_WIDE_MARKS):
            bits = 32 if piece.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)) else 16
            raise EncodingError(
                f"{name} is UTF-{bits}, not UTF-8",
                kind="set",
                keys=["data.encoding"],
                choices=[f"utf-{bits}"],
            )
        if encoding == "utf-8" and (zero := piece.find(b"\0")) >= 0:
            raise BinaryError(f"{name} is binary, not text: there is a zero byte at offset {offset + zero:,}")
        if as_utf8 is not None:
            as_utf8.feed(piece)
        pending = stream.getstate()[0]
        try:
            text = stream.decode(piece, not piece)
        except UnicodeDecodeError as error:
            position = offset - len(pending) + error.start
            raise EncodingError(
                f"{name} is not {encoding.upper()}: byte 0x{error.object[error.start]:02x} at offset {position:,}",
                where=f"{name}:{lines + error.object.count(_NEWLINE, 0, error.start) + 1}",
                kind="set",
                keys=["data.encoding"],
                choices=["latin-1"],
            ) from error
        except UnicodeError as error:  # UTF-16 or UTF-32 without a byte order mark
            raise UserError(
                f"{name} is not {encoding.upper()}: {error}", hint=f"without a mark: {encoding}-le or {encoding}-be"
            ) from error
        if encoding != "utf-8" and "\0" in text:
            raise BinaryError(f"{name} is binary, not text: there is a zero character near offset {offset:,}")
        offset += len(piece)
        # bytes.count takes six times as long, and the interpreter's lock with it
        lines += int(np.count_nonzero(np.frombuffer(piece, dtype=np.uint8) == _NEWLINE[0]))
        data = pending + piece if pending else piece
        if incomplete := len(stream.getstate()[0]):  # bytes of a character that goes on in the next piece
            data = data[:-incomplete]
        if text and first and text.startswith(_MARK):
            note(f"{name} starts with a byte order mark, which was dropped")
            text, data, first = text[1:], data[len(codecs.BOM_UTF8) :], False
        if text:
            empty = first = False
            yield text, data
    if empty:
        raise UserError(f"{name} is empty")
    if as_utf8 is not None and as_utf8.is_likely:
        note(
            f"{name} is valid UTF-8, and is read as {encoding.upper()}: one encoding is for all texts;\n"
            "if another file alone has it, write that one anew as UTF-8"
        )


class _Utf8Check:
    """Tells if bytes, fed in pieces with an empty one at the end, could be a text in UTF-8 with more than ASCII."""

    def __init__(self) -> None:
        self._stream = codecs.getincrementaldecoder("utf-8")()
        self._is_valid, self._has_others = True, False

    def feed(self, piece: bytes) -> None:
        if self._is_valid:
            try:
                text = self._stream.decode(piece, not piece)
                self._is_valid, self._has_others = "\0" not in text, self._has_others or not text.isascii()
            except UnicodeDecodeError:
                self._is_valid = False

    @property
    def is_likely(self) -> bool:
        return self._is_valid and self._has_others
