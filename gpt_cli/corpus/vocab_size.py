"""Choose the vocabulary size of a BPE from the text alone."""

import re
import unicodedata
from collections import Counter

from gpt_cli.literals import Pattern
from gpt_cli.tokenizer.pretokenizer import CUTS_MARKS

COUNTED = 10_000_000
"""Characters at the start of the text in which words are counted."""
_LADDER = (
    *((16_384, 100_000_000), (8_192, 20_000_000), (4_096, 5_000_000)),
    *((2_048, 1_000_000), (1_024, 200_000), (512, 50_000), (384, 0)),
)
"""(ids, minimum characters of the text), largest first."""

_BYTES_AND_END = 257  # ids that every BPE has


def choose_vocab_size(start: str, characters: int, pattern: Pattern) -> int:
    """The vocabulary size of a BPE for a training text of `characters` characters that begins with `start`.

    It grows with the text, and is at most the number of merges it supports: one for each word, as `pattern` splits it,
    that occurs twice.
    """
    learnable = _BYTES_AND_END + _count_words(start[:COUNTED], pattern)
    return next(
        (size for size, min_characters in _LADDER if characters >= min_characters and size <= learnable),
        min(learnable, 384),
    )


def _count_words(text: str, pattern: Pattern) -> int:
    """The number of distinct words of two or more letters that occur at least twice.

    A word after a space is counted apart from the same word without one, as in GPT-2's pattern: BPE can learn a merge
    for each.
    """
    letter = r"[^\W\d_]"
    marks = [character for character in set(text) if unicodedata.category(character)[0] == "M"]
    if marks and pattern not in CUTS_MARKS:  # a mark is a letter
        letter = f"(?:{letter}|[{''.join(marks)}])"
    words = Counter(match[0] for match in re.finditer(rf" ?{letter}{{2,}}", text))
    return sum(count > 1 for count in words.values())
