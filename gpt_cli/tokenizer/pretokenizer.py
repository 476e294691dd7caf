"""Pre-tokenizers: the patterns that split text before BPE merges.

gpt2   GPT-2 and GPT-3: a blank goes with the word after it; letters, digits and symbols stay apart
gpt4   GPT-4 (cl100k) and Llama 3: any one character that is no letter goes with the word, at most three digits
       together, line breaks end a token of symbols, contractions in capitals too
o200k  GPT-4o and gpt-oss: words also end where a capital follows small letters, and take their contraction along

gpt4 is spelled as in Hugging Face's files; tiktoken's cl100k of today differs where a text ends in a blank after a
line break.

Published patterns, and no others: a pattern is a program that runs on the user's text, and one from an untrusted
file can take exponential time.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from gpt_cli.literals import Pattern

# The characters of \s in the published patterns. Python's \s has four more (U+001C ... U+001F).
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# A token that a character beyond ASCII could be a part of is no piece but a chunk: a word that one follows, and other
# tokens if one follows them or the word after them.
_SYMBOL = r"[^\sA-Za-z0-9\x80-\U0010ffff]"
_PREFIX = r"[^\r\nA-Za-z0-9\x80-\U0010ffff]?"
_CONTRACTION = r"'(?i:[stmd]|re|ve|ll)"
_FAR = r"[^\x00-\x7f]"
_NOT_FAR = rf"(?!\s*+{_SYMBOL}*+(?:[A-Za-z]++'?+|[0-9]++)?+{_FAR})"


class SplitRule(NamedTuple):
    """A published pattern, and expressions for Python's `re`, which lacks its classes, that change no ids."""

    published: str
    chunk: str
    """A chunk that the pattern splits alone exactly as inside a text, so that it can be encoded alone; white space
    first."""
    ascii_piece: str
    """The pattern itself for ASCII."""


RULES: Mapping[Pattern, SplitRule] = {
    "gpt2": SplitRule(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        # No match goes on from a letter, digit or symbol into white space, so it may end before any.
        rf"[{_SPACE}]*+[^{_SPACE}]++|[{_SPACE}]++",
        rf" ?[A-Za-z]++(?!{_FAR})|{_NOT_FAR}(?:'(?:[stmd]|re|ve|ll)| ?[0-9]+| ?{_SYMBOL}+|\s+(?!\S)|\s+)",
    ),
    "gpt4": SplitRule(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        # But here symbols take the line breaks after them along; so it ends before a blank, or after white space that
        # ends in a line break, which no match goes on from.
        rf"[{_SPACE}]*+[^{_SPACE}]++(?:(?! )[{_SPACE}]++(?<![\r\n])[^{_SPACE}]*+)*+(?:(?! )[{_SPACE}]++)?+"
        rf"|[{_SPACE}]++",
        rf"{_CONTRACTION}|{_PREFIX}[A-Za-z]++(?!{_FAR})|{_NOT_FAR}"
        rf"(?:[0-9]{{1,3}}| ?{_SYMBOL}+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    ),
    "o200k": SplitRule(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # Likewise, but symbols also take the slashes after the line breaks.
        rf"[{_SPACE}]*+[^{_SPACE}]++(?:(?! )[{_SPACE}]++(?:(?<![\r\n])|(?=/))[^{_SPACE}]*+)*+"
        rf"(?:(?! )[{_SPACE}]++)?+|[{_SPACE}]++",
        rf"{_PREFIX}(?:[A-Z]*+[a-z]++|[A-Z]++(?![a-z]))(?:{_CONTRACTION}|(?!'?{_FAR}))|{_NOT_FAR}"
        rf"(?:[0-9]{{1,3}}| ?{_SYMBOL}+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    ),
}

CUTS_MARKS: tuple[Pattern, ...] = ("gpt2", "gpt4")
"""Patterns in which a combining mark ends the word: they cut Indic words at every vowel sign."""
SAMPLED = 1_000_000
"""Characters at the start of a text by which its pattern is chosen."""
_MANY_MARKS = 0.1  # of letters and marks; accents of decomposed French 0.03, of Vietnamese 0.25, Thai 0.2, Hindi 0.33


def choose_pattern(text: str) -> Pattern:
    """Return the pattern for a text that begins with `text`: one that keeps marks with their letters if it has many.

    Marks are combining ones after letters: vowel signs, tones, points.
    """
    if (text := text[:SAMPLED]).isascii():
        return "gpt2"
    classes = text.translate({ord(character): unicodedata.category(character)[0] for character in set(text)})
    marks = sum(map(len, re.findall(r"(?<=L)M+", classes)))  # those of emoji follow no letter
    return "o200k" if marks > _MANY_MARKS * (marks + classes.count("L")) else "gpt2"


@cache  # compiled on first use: all of them take 20 ms
def _chunk(pattern: Pattern) -> re.Pattern[str]:
    return re.compile(RULES[pattern].chunk)


@cache
def _piece(pattern: Pattern) -> re.Pattern[str]:
    return re.compile(f"{RULES[pattern].ascii_piece}|{RULES[pattern].chunk}", re.ASCII)


def pre_tokenize(text: str, pattern: Pattern) -> list[str]:
    """Split `text` without a change of its ids: ASCII as the pattern does, the rest mostly at white space."""
    return _piece(pattern).findall(text)


def split_chunks(text: str, size: int, pattern: Pattern) -> Iterator[str]:
    """Split `text` without a change of its ids into chunks of at least `size` characters, as short as possible."""
    start = 0
    while (end := start + size) < len(text):
        match = _chunk(pattern).match(text, end)
        assert match is not None  # it matches any text but the empty one
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def last_safe_split(text: str, pattern: Pattern) -> int:
    """The last index where `text` can be split, whatever text follows, without a change of ids; 0 if there is none."""
    tail = 1 << 10
    while True:
        match = _chunk(pattern).match(text, max(0, len(text) - tail))
        if match is not None and match.end() < len(text):  # ends inside: does not depend on the text that follows
            return match.end()
        if tail >= len(text):
            return 0
        tail <<= 3


def pre_tokenizer(pattern: Pattern) -> PreTokenizer:
    """The pre-tokenizer of Hugging Face's library, which maps bytes to printable characters."""
    if pattern == "gpt2":
        return ByteLevel(add_prefix_space=False, use_regex=True)
    split = Split(Regex(RULES[pattern].published), behavior="isolated")
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
