"""Choose the vocabulary size of a BPE from the text alone."""

import re
from collections import Counter

COUNTED = 10_000_000
"""Characters in which words are counted."""
_LADDER = (
    *((16_384, 100_000_000), (8_192, 20_000_000), (4_096, 5_000_000)),
    *((2_048, 1_000_000), (1_024, 200_000), (512, 50_000), (384, 0)),
)
"""(ids, characters from which on): a longer text has room to learn what a rarer token means."""

_BYTES_AND_END = 257  # ids that every BPE has


def choose_vocab_size(start: str, characters: int) -> int:
    """The ids of a BPE for a training text of so many `characters`, which begins with `start`.

    It grows with the text, and is never more than the text has merges for: each word that occurs twice is one.
    """
    supported = _BYTES_AND_END + _count_words(start[:COUNTED])
    return next((size for size, least in _LADDER if characters >= least and size <= supported), min(supported, 384))


def _count_words(text: str) -> int:
    """Distinct words of two letters or more that occur twice or more, those after a space and those that are not apart.

    BPE splits a text likewise (GPT-2's pattern), so that each of them is a merge that it can learn.
    """
    return sum(count > 1 for count in Counter(re.findall(r" ?[^\W\d_]{2,}", text)).values())
