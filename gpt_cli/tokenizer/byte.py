"""One id per byte of the UTF-8 text."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gpt_cli.tokenizer.base import Ids, Tokenizer, encode_text, validate_ids

FORMAT = "gpt-byte-1"


@dataclass(frozen=True)
class ByteTokenizer(Tokenizer):
    """Id `i` is the byte `i`, so every text can be encoded."""

    kind: ClassVar[str] = "byte"
    vocab_size: ClassVar[int] = 256
    eot_id: ClassVar[None] = None
    unk_id: ClassVar[None] = None

    def encode(self, text: str, *, allow_special: bool = False) -> Ids:
        return self.encode_utf8(encode_text(text))

    def encode_utf8(self, data: bytes, *, allow_special: bool = False) -> Ids:
        return np.frombuffer(data, dtype=np.uint8).astype(np.uint32)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        return self._bytes(ids).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return self._bytes([token])

    def unknown_characters(self, text: str) -> list[str]:
        return []

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT}) + "\n"

    def _bytes(self, ids: Sequence[int] | npt.NDArray[Any]) -> bytes:
        return validate_ids(ids, self.vocab_size).astype(np.uint8).tobytes()
