"""Byte-level byte-pair encoding (Sennrich et al., 2016; Radford et al., 2019)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gpt_cli.tokenizer.base import Ids, Tokenizer, encode_text, validate_ids
from gpt_cli.tokenizer.bpe_vocabulary import Vocabulary
from gpt_cli.tokenizer.cached_bpe import CachedBPE
from gpt_cli.tokenizer.hf_tokenizer import write_vocabulary
from gpt_cli.tokenizer.pretokenizer import split_chunks
from gpt_cli.tokenizer.riptoken_encoder import RiptokenEncoder
from gpt_cli.tokenizer.token_prefixes import TokenPrefixes

BLOCK = 1 << 20  # characters encoded at once, to bound the memory


@dataclass(frozen=True)
class BPETokenizer(Tokenizer):
    """Bytes, merged pair by pair in the order in which the merges were learned."""

    vocabulary: Vocabulary

    kind: ClassVar[str] = "bpe"
    unk_id: ClassVar[None] = None

    def __reduce__(self) -> tuple[type["BPETokenizer"], tuple[Vocabulary]]:
        return BPETokenizer, (self.vocabulary,)  # without the cached properties

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.tokens)

    @property
    def eot_id(self) -> int | None:
        return self.vocabulary.eot_id

    def encode(self, text: str, *, allow_special: bool = False) -> Ids:
        encode_text(text)
        if not allow_special:
            return np.concatenate([np.zeros(0, dtype=np.uint32), *self._encode(text)])
        parts: list[Ids] = [np.zeros(0, dtype=np.uint32)]
        for i, part in enumerate(self._special_texts.split(text)):  # alternately text and special token
            parts += self._encode(part) if i % 2 == 0 else [self._special_ids[part]]
        return np.concatenate(parts)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        tokens = map(self.vocabulary.tokens.__getitem__, validate_ids(ids, self.vocab_size).tolist())
        return b"".join(tokens).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        validate_ids([token], self.vocab_size)
        return b"" if token in self.vocabulary.special else self.vocabulary.tokens[token]

    def unknown_characters(self, text: str) -> list[str]:
        return []

    def to_json(self) -> str:
        return self._json

    def _encode(self, text: str) -> Iterator[Ids]:
        return map(self._fast.encode, split_chunks(text, BLOCK, self.vocabulary.pattern))

    @cached_property
    def prefixes(self) -> TokenPrefixes:
        return TokenPrefixes([self.token_bytes(token) for token in range(self.vocab_size)])

    @cached_property
    def _pieces(self) -> CachedBPE:
        return CachedBPE(self.vocabulary)

    @cached_property
    def _fast(self) -> RiptokenEncoder:
        return RiptokenEncoder(self.vocabulary, self._pieces.encode)

    @cached_property
    def _special_ids(self) -> dict[str, Ids]:
        special = sorted(self.vocabulary.special)
        return {self.vocabulary.tokens[i].decode(): np.array([i], dtype=np.uint32) for i in special}

    @cached_property
    def _special_texts(self) -> re.Pattern[str]:
        """One group that matches a special token, the longest first; it never matches if there are none."""
        longest_first = sorted(self._special_ids, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    @cached_property
    def _json(self) -> str:
        return write_vocabulary(self.vocabulary)
