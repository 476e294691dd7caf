"""The rule that splits text before BPE merges: merges never cross its borders.

Two published patterns, and no others: a pattern is a program that runs on the user's text, and one from an
untrusted file can take exponential time.
"""

import re
from collections.abc import Iterator
from typing import Literal

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

Pattern = Literal["gpt2", "gpt4"]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# What \s is in the patterns above. Python's \s has four more (U+001C ... U+001F).
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

# A piece: what the pattern splits alone exactly as inside a text, so that pieces can be encoded apart.
# gpt2: no match goes on from a letter, digit or symbol into white space, so a piece may end before any.
# gpt4: but here symbols take the line breaks after them along; so a piece ends before a blank, or after
#       white space that ends in a line break, which no match goes on from.
_PIECE = {
    "gpt2": re.compile(rf"[{_SPACE}]*+[^{_SPACE}]++|[{_SPACE}]++"),
    "gpt4": re.compile(
        rf"[{_SPACE}]*+[^{_SPACE}]++(?:(?! )[{_SPACE}]++(?<![\r\n])[^{_SPACE}]*+)*+(?:(?! )[{_SPACE}]++)?+"
        rf"|[{_SPACE}]++"
    ),
}


def pieces(text: str, pattern: Pattern) -> list[str]:
    """`text` cut where it can be cut without changing its ids, mostly at each word."""
    return _PIECE[pattern].findall(text)


def blocks(text: str, size: int, pattern: Pattern) -> Iterator[str]:
    """`text` cut likewise, at the first chance after every `size` characters."""
    start = 0
    while (end := start + size) < len(text):
        match = _PIECE[pattern].match(text, end)
        assert match is not None  # it matches any text but the empty one
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def last_cut(text: str, pattern: Pattern) -> int:
    """Where `text` can be cut, near its end, whatever text follows; 0 if nowhere."""
    tail = 1 << 10
    while True:
        match = _PIECE[pattern].match(text, max(0, len(text) - tail))
        if match is not None and match.end() < len(text):  # one that ends inside does not depend on what follows
            return match.end()
        if tail >= len(text):
            return 0
        tail <<= 3


def pre_tokenizer(pattern: Pattern) -> PreTokenizer:
    """The pattern as Hugging Face's library runs it, bytes mapped to printable characters."""
    if pattern == "gpt2":
        return ByteLevel(add_prefix_space=False, use_regex=True)
    split = Split(Regex(GPT4), behavior="isolated")
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
