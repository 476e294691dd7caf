"""Text to BPE ids by way of its pieces: each distinct one is merged once, and its ids are looked up from then on.

Text repeats itself, so most of the work is cutting it and looking pieces up. It is the reference of riptoken, and
encodes what riptoken does not: short texts, and vocabularies that merge by other rules.
"""

from collections.abc import Iterable
from itertools import filterfalse, pairwise

import numpy as np
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE

from gpt_cli.tokenizer.base import Ids
from gpt_cli.tokenizer.bpe_vocabulary import Vocabulary, bytes_to_unicode
from gpt_cli.tokenizer.pretokenizer import pre_tokenize, pre_tokenizer

_MEMORY = 24 << 20  # bytes, about, that known pieces may take in each process that encodes
_ENTRY = 200  # bytes of a known piece beside its characters and ids
_CHARACTER = 5  # bytes per character of it, ids included


class CachedBPE:
    """The ids of a vocabulary for text, without special tokens. It remembers pieces, in bounded memory."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pattern = vocabulary.pattern
        self._engine = _engine(vocabulary)
        self._sizes = np.fromiter(map(len, vocabulary.tokens), dtype=np.int64, count=len(vocabulary.tokens))
        self._known: dict[str, bytes] = {}  # piece -> its ids, as the bytes of uint32
        self._held = 0

    def encode(self, text: str) -> Ids:
        """The ids of `text`: (n,) uint32, read-only. Memory grows with the text: give it in blocks."""
        if self._held > _MEMORY:
            self._known, self._held = {}, 0  # a new one: another thread may be reading the old one
        known = self._known
        found = pre_tokenize(text, self._pattern)
        if new := list(set(filterfalse(known.__contains__, found))):
            known.update(self._merge(new))
            self._held += _ENTRY * len(new) + _CHARACTER * sum(map(len, new))
        return np.frombuffer(b"".join(map(known.__getitem__, found)), dtype=np.uint32)

    def _merge(self, new: list[str]) -> Iterable[tuple[str, bytes]]:
        """Each of `new` with its ids. One call for all, since an answer for each costs more than the merging."""
        (encoding,) = self._engine.encode_batch_fast([new], is_pretokenized=True, add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.uint32)
        sizes = np.fromiter((len(piece.encode()) for piece in new), dtype=np.int64, count=len(new))
        ends = self._sizes[ids].cumsum().searchsorted(sizes.cumsum(), "right")  # a piece ends where its bytes do
        data = ids.tobytes()
        return zip(new, (data[start:end] for start, end in pairwise([0, *(4 * ends).tolist()])), strict=True)


def _engine(vocabulary: Vocabulary) -> Engine:
    """The merges alone. Special tokens stay outside, so that no text can produce one."""
    spellings = [bytes_to_unicode(token) for token in vocabulary.tokens]
    engine = Engine(
        BPE(
            vocab={spelling: i for i, spelling in enumerate(spellings) if i not in vocabulary.special},
            merges=[(spellings[left], spellings[right]) for left, right, _ in vocabulary.merges],
            ignore_merges=vocabulary.ignore_merges,
        )
    )
    engine.pre_tokenizer = pre_tokenizer(vocabulary.pattern)
    return engine
