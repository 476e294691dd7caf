"""Byte-level byte-pair encoding (Sennrich et al., 2016; Radford et al., 2019).

Short texts are encoded by Hugging Face's `tokenizers` behind a cache of words, the reference; long ones by riptoken,
on the platforms for which it is published. riptoken supports the patterns and the tokens as they are, and was the only
one of the fast encoders without a difference on any input tried. As it is young, a part of each block is also encoded
by the reference.
"""

import importlib
import importlib.util
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import filterfalse, pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import BPE

from gpt_cli.tokenizer.base import Ids, Tokenizer, TokenPrefixes, encode_text, validate_ids
from gpt_cli.tokenizer.bpe_vocabulary import Vocabulary, write_vocabulary
from gpt_cli.tokenizer.pretokenizer import RULES, pre_tokenize, pre_tokenizer, split_chunks

BLOCK = 1 << 20  # characters encoded at once, to bound the memory
CACHE_BYTES = 24 << 20  # bytes of the cache of words, about, in each encoding process
_ENTRY_BYTES = 200  # overhead of a word
_CHARACTER_BYTES = 5  # bytes per character of a word, with its ids
MIN_LENGTH = 1 << 16  # characters from which riptoken encodes
_SAMPLE = 1 << 14  # characters of each block that are checked against the reference
_MAX_RUN = 1 << 12  # bytes of a run without a blank, or of blanks: riptoken's time is quadratic in them


@dataclass(frozen=True)
class BPETokenizer(Tokenizer):
    """Bytes, merged pair by pair in the order in which the merges were learned."""

    vocabulary: Vocabulary

    kind: ClassVar[str] = "bpe"

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.tokens)

    @property
    def eot_id(self) -> int | None:
        return self.vocabulary.eot_id

    def encode(self, text: str, *, allow_special: bool = False) -> Ids:
        encode_text(text)
        parts: list[Ids] = [np.zeros(0, dtype=np.uint32)]
        for i, part in enumerate(self._special_texts.split(text) if allow_special else [text]):
            if i % 2:  # alternately text and special token
                parts.append(self._special_ids[part])
            else:
                parts += map(self._encoder.encode, split_chunks(part, BLOCK, self.vocabulary.pattern))
        return np.concatenate(parts)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        tokens = map(self.vocabulary.tokens.__getitem__, validate_ids(ids, self.vocab_size).tolist())
        return b"".join(tokens).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        validate_ids([token], self.vocab_size)
        return b"" if token in self.vocabulary.special else self.vocabulary.tokens[token]

    def to_json(self) -> str:
        return self._json

    @cached_property
    def prefixes(self) -> TokenPrefixes:
        return TokenPrefixes([self.token_bytes(token) for token in range(self.vocab_size)])

    @cached_property
    def _encoder(self) -> "BPEEncoder":
        return BPEEncoder(self.vocabulary)

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


class BPEEncoder:
    """Encode text without special tokens: by riptoken, or from its first difference on by the reference."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._library = _library_tokenizer(vocabulary)
        self._sizes = np.fromiter(map(len, vocabulary.tokens), dtype=np.int64, count=len(vocabulary.tokens))
        self._cache: dict[str, bytes] = {}  # word -> its ids, as the bytes of uint32
        self._cache_size = 0
        self._is_trusted = _is_ranked(vocabulary) and importlib.util.find_spec("riptoken") is not None

    def encode(self, text: str) -> Ids:
        """The ids of `text`: (n,) uint32. Memory grows with the text: pass it in blocks."""
        if not self._is_trusted or len(text) < MIN_LENGTH or _has_long_run(text):
            return self.encode_by_words(text)
        sample = next(split_chunks(text, _SAMPLE, self._vocabulary.pattern))
        if not np.array_equal(self._riptoken.encode_ordinary(sample), self.encode_by_words(sample)):
            logging.getLogger(__name__).warning(
                "note: riptoken returns other ids than Hugging Face's tokenizers here, so it is not used"
            )
            self._is_trusted = False
            return self.encode_by_words(text)
        return np.array(self._riptoken.encode_ordinary(text), dtype=np.uint32)

    def encode_by_words(self, text: str) -> Ids:
        """The reference: the ids of each distinct word are computed once, as text repeats itself. Read-only."""
        if self._cache_size > CACHE_BYTES:
            self._cache, self._cache_size = {}, 0  # a new dict: another thread may be reading the old one
        cache = self._cache
        words = pre_tokenize(text, self._vocabulary.pattern)
        if new := list(set(filterfalse(cache.__contains__, words))):
            cache.update(self._merge(new))
            self._cache_size += _ENTRY_BYTES * len(new) + _CHARACTER_BYTES * sum(map(len, new))
        return np.frombuffer(b"".join(map(cache.__getitem__, words)), dtype=np.uint32)

    def _merge(self, new: list[str]) -> Iterable[tuple[str, bytes]]:
        """(word, ids as bytes) for each of `new`, by one call of the library: calls cost more than merging."""
        (encoding,) = self._library.encode_batch_fast([new], is_pretokenized=True, add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.uint32)
        sizes = np.fromiter((len(word.encode()) for word in new), dtype=np.int64, count=len(new))
        ends = self._sizes[ids].cumsum().searchsorted(sizes.cumsum(), "right")  # a word ends where its bytes do
        data = ids.tobytes()
        return zip(new, (data[start:end] for start, end in pairwise([0, *(4 * ends).tolist()])), strict=True)

    @cached_property
    def _riptoken(self) -> Any:
        """riptoken with this vocabulary, built on first use: importing it and adding 50,257 tokens take time."""
        tokens, special = self._vocabulary.tokens, self._vocabulary.special
        ranks = {token: i for i, token in enumerate(tokens) if i not in special}
        return importlib.import_module("riptoken").CoreBPE(ranks, {}, RULES[self._vocabulary.pattern].published)


def _library_tokenizer(vocabulary: Vocabulary) -> HFTokenizer:
    """The library's BPE without the special tokens, so that no text is encoded to one."""
    spellings = vocabulary.spellings
    model = BPE(
        vocab={spelling: i for i, spelling in enumerate(spellings) if i not in vocabulary.special},
        merges=[(spellings[left], spellings[right]) for left, right, _ in vocabulary.merges],
        ignore_merges=vocabulary.ignore_merges,
    )
    tokenizer = HFTokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer(vocabulary.pattern)
    return tokenizer


def _is_ranked(vocabulary: Vocabulary) -> bool:
    """True if merging the pair with the lowest id first is equivalent to the order of the merges."""
    merged_ids = [merged for _, _, merged in vocabulary.merges]
    byte_ids = [i for i, token in enumerate(vocabulary.tokens) if len(token) == 1 and i not in vocabulary.special]
    ordinary = set(range(len(vocabulary.tokens))) - vocabulary.special
    in_order = not vocabulary.ignore_merges and merged_ids == sorted(merged_ids)
    return in_order and {*merged_ids, *byte_ids} == ordinary and len(byte_ids) == 256


def _has_long_run(text: str) -> bool:
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    blank = data <= ord(" ")
    return any(np.diff(np.flatnonzero(mask), prepend=-1, append=len(data)).max() > _MAX_RUN for mask in (blank, ~blank))
