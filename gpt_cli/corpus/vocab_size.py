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
    """Return the vocabulary size of a BPE for a training text of `characters` characters that begins with `start`.

    It grows with the text, and is at most the number of merges it supports: one for each word of two or more letters
    that occurs twice. A word after a space is counted apart, as in GPT-2's pattern: BPE can learn a merge for each.
    """
    text, letter = start[:COUNTED], r"[^\W\d_]"
    marks = "".join(character for character in set(text) if unicodedata.category(character)[0] == "M")
    if marks and pattern not in CUTS_MARKS:  # a mark is a letter
        letter = f"(?:{letter}|[{marks}])"
    words = Counter(match[0] for match in re.finditer(rf" ?{letter}{{2,}}", text))
    learnable = _BYTES_AND_END + sum(count > 1 for count in words.values())
    sizes = (size for size, min_characters in _LADDER if characters >= min_characters and size <= learnable)
    return next(sizes, min(learnable, 384))
