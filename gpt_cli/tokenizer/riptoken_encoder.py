"""The optional accelerator for much text: riptoken, where `pip install 'gpt-cli[fast]'` brought it.

It takes the pattern and the tokens as they are, and of the fast encoders it was the only one as quick as this without
a difference on any input tried. But it is young, so every block is checked.
"""

import importlib
import importlib.util
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from gpt_cli.literals import Pattern
from gpt_cli.tokenizer.base import Ids
from gpt_cli.tokenizer.bpe_vocabulary import Vocabulary
from gpt_cli.tokenizer.pretokenizer import REGEX, split_chunks

_BULK = 1 << 16  # characters from which on it is used
_SAMPLE = 1 << 14  # characters of each block that are encoded by the reference too
_LONGEST_RUN = 1 << 12  # bytes without a break: in longer ones its time grows with their square


class RiptokenEncoder:
    """riptoken beside its reference, for which it steps aside once and for all when they differ."""

    def __init__(self, vocabulary: Vocabulary, reference: Callable[[str], Ids]) -> None:
        self._pattern: Pattern = vocabulary.pattern
        self._reference = reference
        self._core = _core(vocabulary)

    def encode(self, text: str) -> Ids:
        """The ids of `text`: (n,) uint32."""
        if self._core is None or len(text) < _BULK or _has_long_run(text):
            return self._reference(text)
        sample = next(split_chunks(text, _SAMPLE, self._pattern))
        if not np.array_equal(self._core.encode_ordinary(sample), self._reference(sample)):
            logging.getLogger(__name__).warning(
                "note: riptoken gives other ids than Hugging Face's tokenizers here, so it is not used"
            )
            self._core = None
            return self._reference(text)
        return np.array(self._core.encode_ordinary(text), dtype=np.uint32)


def _core(vocabulary: Vocabulary) -> Any:
    """riptoken with this vocabulary; None where it is not installed, or does not do the same by its rules."""
    if not _is_ranked(vocabulary) or importlib.util.find_spec("riptoken") is None:
        return None
    ranks = {token: i for i, token in enumerate(vocabulary.tokens) if i not in vocabulary.special}
    return importlib.import_module("riptoken").CoreBPE(ranks, {}, REGEX[vocabulary.pattern])


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
