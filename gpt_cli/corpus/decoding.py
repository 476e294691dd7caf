"""Strict decoding of text in pieces; errors have the offset of the byte."""

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from gpt_cli.corpus.records import peek
from gpt_cli.errors import Notify, RequestError, UserError

_NEWLINE = b"\n"
_UNSUPPORTED = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7"})
FORMATS = {b"\x1f\x8b\x08": "gzip", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
FORMATS |= {b"%PDF-": "PDF", b"PAR1\x15": "Parquet"}
"""The first bytes of files that are no text."""
_MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"}  # the first begins with that of UTF-16
_MARKS |= {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def check_encoding(encoding: str) -> str:
    """Python's own name of a text encoding. Raises RequestError for one it does not know."""
    try:
        "".encode(encoding)  # unlike codecs.lookup, it refuses base64, rot13 and the like
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError):
        name = "undefined"
    if name in _UNSUPPORTED:
        raise RequestError(f"'{encoding}' is not an encoding of text, such as utf-8, utf-16, latin-1 or shift_jis")
    return name


def decode_utf8(pieces: Iterable[bytes], name: str, encoding: str, note: Notify) -> Iterator[bytes]:
    """The text of `pieces` in UTF-8, in pieces of whole characters, newlines as they are, without a byte order mark.

    A text that begins with the mark of UTF-16 or UTF-32 is read as such in place of UTF-8. Raises UserError, with the
    offset of the byte, for text that is empty, not in `encoding`, or binary.
    """
    encoding = check_encoding(encoding)
    head, pieces = peek(filter(None, pieces), 8)
    if found := next((kind for magic, kind in FORMATS.items() if head.startswith(magic)), None):
        raise UserError(f"{name} is {found}, not text")
    if encoding == "utf-8" and (wide := next((_MARKS[mark] for mark in _MARKS if head.startswith(mark)), None)):
        note(f"{name} starts with the byte order mark of {wide.upper()}, and is read as that")
        encoding = wide
    as_utf8 = None if encoding == "utf-8" else _Utf8Check()
    empty = True
    for text, data in _decode_strictly(pieces, name, encoding):
        if as_utf8 is not None:
            as_utf8.feed(data)
        if empty and text.startswith("\ufeff"):
            note(f"{name} starts with a byte order mark, which was dropped")
            text, data = text[1:], data[len(codecs.BOM_UTF8) :]
        if text:
            empty = False
            yield data if encoding == "utf-8" else text.encode()
    if empty:
        raise UserError(f"{name} is empty")
    if as_utf8 is not None and as_utf8.is_likely:
        note(f"{name} is valid UTF-8, and is read as {encoding.upper()}: one encoding is for all texts")


def _decode_strictly(pieces: Iterable[bytes], name: str, encoding: str) -> Iterator[tuple[str, bytes]]:
    """Yield (text, its bytes in `encoding`) for each piece, and for the end, which is empty unless it is cut off."""
    stream = codecs.getincrementaldecoder(encoding)()
    offset = lines = 0  # bytes and lines that `stream` has consumed
    for piece in chain(pieces, [b""]):
        pending = stream.getstate()[0]
        zero = piece.find(b"\0") if encoding == "utf-8" else -1
        try:
            text = stream.decode(piece, not piece) if zero < 0 else "\0"
        except UnicodeError as error:
            raise _encoding_error(name, encoding, error, offset - len(pending), lines) from error
        if "\0" in text:
            place = (
                f"a zero byte at offset {offset + zero:,}" if zero >= 0 else f"a zero character after {offset:,} bytes"
            )
            raise UserError(f"{name} is binary, not text: there is {place}")
        offset += len(piece)
        # bytes.count takes six times as long, and the interpreter's lock with it
        lines += int(np.count_nonzero(np.frombuffer(piece, dtype=np.uint8) == _NEWLINE[0]))
        data = pending + piece if pending else piece
        incomplete = len(stream.getstate()[0])  # bytes of a character that continues in the next piece
        yield text, data[:-incomplete] if incomplete else data


def _encoding_error(name: str, encoding: str, error: UnicodeError, offset: int, lines: int) -> UserError:
    """The error for bytes that follow `offset` bytes and `lines` lines; UTF-16 and UTF-32 may lack a mark."""
    choices, where, reason = [f"{encoding}-le", f"{encoding}-be"], None, str(error)
    if isinstance(error, UnicodeDecodeError):
        choices, where = ["latin-1"], f"{name}:{lines + error.object.count(_NEWLINE, 0, error.start) + 1}"
        reason = f"byte 0x{error.object[error.start]:02x} at offset {offset + error.start:,}"
    message = f"{name} is not {encoding.upper()}: {reason}"
    return UserError(message, where=where, kind="set", keys=["data.encoding"], choices=choices)


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
