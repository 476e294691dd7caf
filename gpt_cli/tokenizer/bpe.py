"""Byte-level byte-pair encoding (Sennrich et al., 2016; Radford et al., 2019).

The merging is done by Hugging Face's `tokenizers`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE

from gpt_cli.tokenizer.base import Ids, Tokenizer, checked, encoded
from gpt_cli.tokenizer.huggingface import write_vocabulary
from gpt_cli.tokenizer.pattern import blocks, pieces, pre_tokenizer
from gpt_cli.tokenizer.vocabulary import Vocabulary, to_printable

_BLOCK = 1 << 22  # characters encoded at once, which bounds the memory


@dataclass(frozen=True)
class BPETokenizer(Tokenizer):
    """Bytes, merged pair by pair in the order in which the merges were learned."""

    vocabulary: Vocabulary

    kind: ClassVar[str] = "bpe"

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.tokens)

    @property
    def end_of_text(self) -> int | None:
        return self.vocabulary.end_of_text

    def encode(self, text: str) -> Ids:
        encoded(text)
        return np.concatenate([self._encode_block(block) for block in blocks(text, _BLOCK, self.vocabulary.pattern)])

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        tokens = map(self.vocabulary.tokens.__getitem__, checked(ids, self.vocab_size).tolist())
        return b"".join(tokens).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        checked([token], self.vocab_size)
        return b"" if token in self.vocabulary.special else self.vocabulary.tokens[token]

    def unknown_characters(self, text: str) -> list[str]:
        return []

    def to_json(self) -> str:
        return self._json

    def _encode_block(self, text: str) -> Ids:
        """Each distinct piece is encoded once, on all cores: much faster than the text as one string."""
        found = pieces(text, self.vocabulary.pattern)
        distinct = {piece: i for i, piece in enumerate(dict.fromkeys(found))}
        encodings = self._engine.encode_batch_fast(list(distinct), add_special_tokens=False)
        lengths = np.fromiter(map(len, encodings), dtype=np.intp, count=len(encodings))
        ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), dtype=np.uint32, count=lengths.sum())
        return _gather(ids, lengths, np.fromiter(map(distinct.__getitem__, found), dtype=np.intp, count=len(found)))

    @cached_property
    def _engine(self) -> Engine:
        """The merges alone. Special tokens stay outside, so that no text can produce one."""
        spellings = [to_printable(token) for token in self.vocabulary.tokens]
        special = self.vocabulary.special
        engine = Engine(
            BPE(
                vocab={spelling: i for i, spelling in enumerate(spellings) if i not in special},
                merges=[(spellings[left], spellings[right]) for left, right, _ in self.vocabulary.merges],
                ignore_merges=self.vocabulary.ignore_merges,
            )
        )
        engine.pre_tokenizer = pre_tokenizer(self.vocabulary.pattern)
        return engine

    @cached_property
    def _json(self) -> str:
        return write_vocabulary(self.vocabulary)


def _gather(values: Ids, lengths: npt.NDArray[np.intp], order: npt.NDArray[np.intp]) -> Ids:
    """The rows named by `order`, one after the other, of `values`: rows of `lengths`, one after the other."""
    starts = np.cumsum(lengths) - lengths
    taken = lengths[order]
    targets = np.cumsum(taken) - taken
    rows: Ids = values[np.arange(taken.sum()) + np.repeat(starts[order] - targets, taken)]
    return rows
