"""Tokenizers that learn no merges: one id per character of an alphabet, or one per byte of the UTF-8."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gpt_cli.tokenizer.base import Ids, Tokenizer, UnknownCharacters, encode_text, validate_ids

CHAR_FORMAT, BYTE_FORMAT = "gpt-char-1", "gpt-byte-1"

_CODE_POINTS = 0x110000
_MISSING = 0xFFFFFFFF
_RUN = 1 << 16  # bytes looked up at once, to stay in the cache of a core
_REPLACEMENT = "\ufffd"  # Unicode's replacement character


@dataclass(frozen=True)
class CharTokenizer(Tokenizer):
    """Id `i` is `characters[i]`; with `has_unknown` the last id is `<unk>`, for all other characters.

    Raises ValueError unless `characters` are distinct Unicode characters, at least one.
    """

    characters: str
    has_unknown: bool = False

    kind: ClassVar[str] = "char"

    def __post_init__(self) -> None:
        if not self.characters:
            raise ValueError("the alphabet is empty")
        self.characters.encode()  # UnicodeEncodeError, a ValueError, for a lone surrogate
        if len(set(self.characters)) < len(self.characters):
            repeated = next(c for i, c in enumerate(self.characters) if c in self.characters[:i])
            raise ValueError(f"U+{ord(repeated):04X} is in the alphabet twice")

    @property
    def vocab_size(self) -> int:
        return len(self.characters) + self.has_unknown

    @property
    def unk_id(self) -> int | None:
        return len(self.characters) if self.has_unknown else None

    def encode(self, text: str, *, allow_special: bool = False) -> Ids:
        return self.encode_utf8(encode_text(text))

    def encode_utf8(self, data: bytes, *, allow_special: bool = False) -> Ids:
        runs = [np.take(self._ids, codes, mode="clip") for codes in code_point_runs(data)]  # clip: the fastest mode
        ids: Ids = np.concatenate(runs) if runs else np.zeros(0, dtype=np.uint32)
        if ids.size and ids.max() == _MISSING:
            text = data.decode()
            raise UnknownCharacters({character: text.index(character) for character in self.unknown_characters(text)})
        return ids

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        codes = self._codes[validate_ids(ids, self.vocab_size)].tobytes()
        return str(codes, "ascii" if self._codes.itemsize == 1 else "utf-32-le")

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == self.unk_id else self.decode([token]).encode()

    def unknown_characters(self, text: str) -> list[str]:
        return [character for character in dict.fromkeys(text) if character not in self.characters]

    def to_json(self) -> str:
        unknown = {"unknown": True} if self.has_unknown else {}
        return json.dumps({"format": CHAR_FORMAT, "characters": self.characters, **unknown}, ensure_ascii=False) + "\n"

    @cached_property
    def _codes(self) -> npt.NDArray[Any]:
        """(vocab_size,) id -> code point; uint8 for an ASCII alphabet."""
        return code_points(self.characters + _REPLACEMENT * self.has_unknown)

    @cached_property
    def _ids(self) -> Ids:
        """(code points,) code point -> id."""
        ids = np.full(_CODE_POINTS, _MISSING if self.unk_id is None else self.unk_id, dtype=np.uint32)
        ids[code_points(self.characters)] = np.arange(len(self.characters))
        return ids


@dataclass(frozen=True)
class ByteTokenizer(Tokenizer):
    """Id `i` is the byte `i`, so every text can be encoded."""

    kind: ClassVar[str] = "byte"
    vocab_size: ClassVar[int] = 256

    def encode(self, text: str, *, allow_special: bool = False) -> Ids:
        return self.encode_utf8(encode_text(text))

    def encode_utf8(self, data: bytes, *, allow_special: bool = False) -> Ids:
        return np.frombuffer(data, dtype=np.uint8).astype(np.uint32)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        return self._bytes(ids).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return self._bytes([token])

    def to_json(self) -> str:
        return json.dumps({"format": BYTE_FORMAT}) + "\n"

    def _bytes(self, ids: Sequence[int] | npt.NDArray[Any]) -> bytes:
        return validate_ids(ids, self.vocab_size).astype(np.uint8).tobytes()


def code_points(text: str) -> npt.NDArray[Any]:
    """(n,) code points of `text`; uint8 if it is ASCII. Raises RequestError for a lone surrogate."""
    if text.isascii():
        return np.frombuffer(encode_text(text, "ascii"), dtype=np.uint8)
    return np.frombuffer(encode_text(text, "utf-32-le"), dtype="<u4")


def code_point_runs(data: bytes) -> Iterator[npt.NDArray[Any]]:
    """Yield the code points of UTF-8 in runs of about _RUN bytes, as `code_points` returns them."""
    start = 0
    while start < len(data):
        end = min(start + _RUN, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # 10xxxxxx: inside a character
            end += 1
        yield code_points(data[start:end].decode())
        start = end
