"""Encode long texts by BPE with riptoken, on the platforms for which it is published.

It supports the pattern and the tokens as they are, and was the only one of the fast encoders without a difference on
any input tried. As it is young, a part of each block is also encoded by the reference.
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
from gpt_cli.tokenizer.pretokenizer import RULES, split_chunks

MIN_LENGTH = 1 << 16  # characters; shorter texts are encoded by the reference
_SAMPLE = 1 << 14  # characters of each block that are checked against the reference
_MAX_RUN = 1 << 12  # bytes of a run without a blank, or of blanks: its time is quadratic in them


class RiptokenEncoder:
    """riptoken, or its reference from the first difference between them on."""

    def __init__(self, vocabulary: Vocabulary, reference: Callable[[str], Ids]) -> None:
        self._vocabulary = vocabulary
        self._reference = reference
        self._is_trusted = _is_ranked(vocabulary) and importlib.util.find_spec("riptoken") is not None

    def encode(self, text: str) -> Ids:
        """The ids of `text`: (n,) uint32."""
        if not self._is_trusted or len(text) < MIN_LENGTH or _has_long_run(text):
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
        """riptoken with this vocabulary, built on first use: importing it and adding 50,257 tokens take time."""
        tokens, special = self._vocabulary.tokens, self._vocabulary.special
        ranks = {token: i for i, token in enumerate(tokens) if i not in special}
        return importlib.import_module("riptoken").CoreBPE(ranks, {}, RULES[self._vocabulary.pattern].published)


def _is_ranked(vocabulary: Vocabulary) -> bool:
    """True if merging the pair with the lowest id first is equivalent to the order of the merges."""
    merged_ids = [merged for _, _, merged in vocabulary.merges]
    byte_ids = [i for i, token in enumerate(vocabulary.tokens) if len(token) == 1 and i not in vocabulary.special]
    ordinary = set(range(len(vocabulary.tokens))) - vocabulary.special
    return (
        not vocabulary.ignore_merges
        and merged_ids == sorted(merged_ids)
        and {*merged_ids, *byte_ids} == ordinary
        and len(byte_ids) == 256
    )


def _has_long_run(text: str) -> bool:
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    blank = data <= ord(" ")
    return any(np.diff(np.flatnonzero(mask), prepend=-1, append=len(data)).max() > _MAX_RUN for mask in (blank, ~blank))
