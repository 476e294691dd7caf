"""Text to BPE ids in bulk, by riptoken, on the platforms for which it is published.

It takes the pattern and the tokens as they are, and of the fast encoders it was the only one as quick as this without
a difference on any input tried. But it is young, so of every block a part is encoded by the reference, too.
"""

import importlib
import importlib.util
import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from gpt_cli.tokenizer.base import Ids
from gpt_cli.tokenizer.bpe_vocabulary import Vocabulary
from gpt_cli.tokenizer.pretokenizer import REGEX, split_chunks

_BULK = 1 << 16  # characters from which on it is used
_SAMPLE = 1 << 14  # characters of each block that are encoded by the reference too
_LONGEST_RUN = 1 << 12  # bytes without a break: in longer ones its time grows with their square


class RiptokenEncoder:
    """riptoken beside its reference, for which it steps aside once and for all when they differ."""

    def __init__(self, vocabulary: Vocabulary, reference: Callable[[str], Ids]) -> None:
        self._vocabulary = vocabulary
        self._reference = reference
        self._is_trusted = _is_ranked(vocabulary) and importlib.util.find_spec("riptoken") is not None

    def encode(self, text: str) -> Ids:
        """The ids of `text`: (n,) uint32."""
        if not self._is_trusted or len(text) < _BULK or _has_long_run(text):
            return self._reference(text)
        sample = next(split_chunks(text, _SAMPLE, self._vocabulary.pattern))
        if not np.array_equal(self._core.encode_ordinary(sample), self._reference(sample)):
            logging.getLogger(__name__).warning(
                "note: riptoken returns other ids than Hugging Face's tokenizers here, so it is not used"
            )
            self._is_trusted = False
            return self._reference(text)
        return np.array(self._core.encode_ordinary(text), dtype=np.uint32)

    @cached_property
    def _core(self) -> Any:
        """riptoken with this vocabulary, built when much text comes: importing it and 50,257 tokens take time."""
        tokens, special = self._vocabulary.tokens, self._vocabulary.special
        ranks = {token: i for i, token in enumerate(tokens) if i not in special}
        return importlib.import_module("riptoken").CoreBPE(ranks, {}, REGEX[self._vocabulary.pattern])


def _is_ranked(vocabulary: Vocabulary) -> bool:
    """True if merging the pair with the lowest id is the same as merging in the order of the merges."""
    made = [merged for _, _, merged in vocabulary.merges]
    single = [i for i, token in enumerate(vocabulary.tokens) if len(token) == 1 and i not in vocabulary.special]
    whole = set(range(len(vocabulary.tokens))) - vocabulary.special
    return not vocabulary.ignore_merges and made == sorted(made) and {*made, *single} == whole and len(single) == 256


def _has_long_run(text: str) -> bool:
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    blank = data <= ord(" ")
    return any(
        np.diff(np.flatnonzero(side), prepend=-1, append=len(data)).max() > _LONGEST_RUN for side in (blank, ~blank)
    )
