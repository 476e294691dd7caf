"""A BPE encoder with a cache: the ids of each distinct piece of pre-tokenized text are computed once.

Text repeats itself, so most of the work is splitting it and looking pieces up. It is the reference of riptoken, and
encodes short texts and vocabularies that riptoken does not support.
"""

from collections.abc import Iterable
from itertools import filterfalse, pairwise

import numpy as np
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import BPE

from gpt_cli.tokenizer.base import Ids
from gpt_cli.tokenizer.bpe_vocabulary import Vocabulary, bytes_to_unicode
from gpt_cli.tokenizer.pretokenizer import pre_tokenize, pre_tokenizer

CACHE_BYTES = 24 << 20  # bytes of the cache, about, in each encoding process
_ENTRY_BYTES = 200  # overhead of a piece
_CHARACTER_BYTES = 5  # bytes per character of a piece, with its ids


class CachedBPE:
    """Encodes text, without special tokens, with a bounded cache of pieces."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pattern = vocabulary.pattern
        self._hf_tokenizer = _hf_tokenizer(vocabulary)
        self._sizes = np.fromiter(map(len, vocabulary.tokens), dtype=np.int64, count=len(vocabulary.tokens))
        self._cache: dict[str, bytes] = {}  # piece -> its ids, as the bytes of uint32
        self._cache_size = 0

    def encode(self, text: str) -> Ids:
        """The ids of `text`: (n,) uint32, read-only. Memory grows with the text: pass it in blocks."""
        if self._cache_size > CACHE_BYTES:
            self._cache, self._cache_size = {}, 0  # a new dict: another thread may be reading the old one
        cache = self._cache
        pieces = pre_tokenize(text, self._pattern)
        if new := list(set(filterfalse(cache.__contains__, pieces))):
            cache.update(self._merge(new))
            self._cache_size += _ENTRY_BYTES * len(new) + _CHARACTER_BYTES * sum(map(len, new))
        return np.frombuffer(b"".join(map(cache.__getitem__, pieces)), dtype=np.uint32)

    def _merge(self, new: list[str]) -> Iterable[tuple[str, bytes]]:
        """(piece, ids as bytes) for each of `new`, by one call of the tokenizer: calls cost more than merging."""
        (encoding,) = self._hf_tokenizer.encode_batch_fast([new], is_pretokenized=True, add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.uint32)
        sizes = np.fromiter((len(piece.encode()) for piece in new), dtype=np.int64, count=len(new))
        ends = self._sizes[ids].cumsum().searchsorted(sizes.cumsum(), "right")  # a piece ends where its bytes do
        data = ids.tobytes()
        return zip(new, (data[start:end] for start, end in pairwise([0, *(4 * ends).tolist()])), strict=True)


def _hf_tokenizer(vocabulary: Vocabulary) -> HFTokenizer:
    """The library's BPE without the special tokens, so that no text is encoded to one."""
    spellings = [bytes_to_unicode(token) for token in vocabulary.tokens]
    tokenizer = HFTokenizer(
        BPE(
            vocab={spelling: i for i, spelling in enumerate(spellings) if i not in vocabulary.special},
            merges=[(spellings[left], spellings[right]) for left, right, _ in vocabulary.merges],
            ignore_merges=vocabulary.ignore_merges,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizer(vocabulary.pattern)
    return tokenizer
