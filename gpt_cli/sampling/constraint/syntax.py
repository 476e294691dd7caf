"""A regular expression, in the syntax and the meaning of Python's `re`, to an automaton over sets of characters.

Python's own parser reads it, and its own engine says which characters a class means, so `\\w`, `(?i)` and the rest mean
here what they mean to `re.fullmatch`. The construction is Thompson's (1968).
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any

from gpt_cli.errors import RequestError, escape_untrusted

Ranges = tuple[tuple[int, int], ...]
"""Inclusive ranges of code points, in order."""

_SHOWN = 200  # characters of a pattern in an error
_LARGEST = 20_000  # states of one automaton
_SURROGATES = (0xD800, 0xE000)
_MATTERS = re.IGNORECASE | re.DOTALL | re.ASCII  # the flags that change which characters a class has
_CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
_UNSUPPORTED = {
    "GROUPREF": r"a back reference such as \1",
    "GROUPREF_EXISTS": "a conditional group",
    "ASSERT": "a lookahead or lookbehind",
    "ASSERT_NOT": "a lookahead or lookbehind",
    "AT": r"an anchor such as ^, $ or \b inside the pattern",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat such as *+",
}


@dataclass
class NFA:
    """States are numbers; `start` is the first, `accept` the one in which a text has matched."""

    free: list[list[int]] = field(default_factory=list)
    """Of each state: where one may go without a character."""
    edges: list[list[tuple[Ranges, int]]] = field(default_factory=list)
    """Of each state: where one may go with a character out of these ranges."""
    start: int = 0
    accept: int = 0

    def state(self) -> int:
        """A new state. Raises RequestError when there are too many."""
        if len(self.free) >= _LARGEST:
            raise RequestError(f"the pattern is too large: it needs more than {_LARGEST:,} states")
        self.free.append([])
        self.edges.append([])
        return len(self.free) - 1


def parse_pattern(pattern: str) -> NFA:
    """The automaton of what `re.fullmatch(pattern, text)` matches.

    Raises RequestError for what is no regular expression (of Python), and for parts of one that look at other text
    than they match: anchors (but ^ at the beginning and $ at the end), back references, lookarounds, and atomic groups
    and possessive repeats, which give up matches.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # a doubtful pattern still has one meaning
            re.compile(pattern)
        tree = import_module("re._parser").parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise RequestError(
            f"'{escape_untrusted(pattern[:_SHOWN])}' is not a regular expression: {error}",
            hint="it is read as Python's re reads it",
        ) from None
    items = list(tree)
    while items and items[0][0].name == "AT" and items[0][1].name in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        items.pop(0)
    while items and items[-1][0].name == "AT" and items[-1][1].name in ("AT_END", "AT_END_STRING"):
        items.pop()
    automaton = NFA()
    automaton.start = automaton.state()
    try:
        automaton.accept = _sequence(automaton, automaton.start, items, tree.state.flags)
    except RecursionError:
        raise RequestError("the pattern is nested too deeply") from None
    return automaton


def _sequence(nfa: NFA, at: int, items: Sequence[Any], flags: int) -> int:
    """Add what `items` match after the state `at`; returns the state in which they have."""
    for operation, value in items:
        at = _item(nfa, at, operation.name, value, flags)
    return at


def _item(nfa: NFA, at: int, name: str, value: Any, flags: int) -> int:
    match name:
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
            end = nfa.state()
            nfa.edges[at].append((_characters(name, value, flags), end))
            return end
        case "SUBPATTERN":
            _, added, removed, items = value
            return _sequence(nfa, at, items, (flags | added) & ~removed)
        case "BRANCH":
            end = nfa.state()
            for items in value[1]:
                begin = nfa.state()
                nfa.free[at].append(begin)
                nfa.free[_sequence(nfa, begin, items, flags)].append(end)
            return end
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, repeated = value
            return _repeat(nfa, at, least, most, repeated, flags)
        case _:
            raise RequestError(
                f"the pattern has {_UNSUPPORTED.get(name, name.lower())}, which sampling cannot follow",
                hint="characters, classes, groups, | and repeats are supported",
            )


def _repeat(nfa: NFA, at: int, least: int, most: Any, items: Sequence[Any], flags: int) -> int:
    """`least` to `most` times `items`; greedy or not, the same texts match."""
    for _ in range(least):
        at = _sequence(nfa, at, items, flags)
    end = nfa.state()
    if getattr(most, "name", None) == "MAXREPEAT":
        loop = nfa.state()
        nfa.free[at].append(loop)
        nfa.free[_sequence(nfa, loop, items, flags)].append(loop)
        nfa.free[loop].append(end)
        return end
    nfa.free[at].append(end)
    for _ in range(most - least):
        at = _sequence(nfa, at, items, flags)
        nfa.free[at].append(end)
    return end


def _characters(name: str, value: Any, flags: int) -> Ranges:
    """Which characters a part of a pattern that stands for one character means."""
    if name == "LITERAL" and not flags & re.IGNORECASE:
        return () if _SURROGATES[0] <= value < _SURROGATES[1] else ((value, value),)
    match name:
        case "LITERAL":
            source = _escaped(value)
        case "NOT_LITERAL":
            source = f"[^{_escaped(value)}]"
        case "ANY":
            source = "."
        case _:
            source = "[" + "".join(map(_class_item, value)) + "]"
    return characters_of(source, flags & _MATTERS)


def _class_item(item: Any) -> str:
    operation, value = item
    match operation.name:
        case "NEGATE":
            return "^"
        case "LITERAL":
            return _escaped(value)
        case "RANGE":
            return f"{_escaped(value[0])}-{_escaped(value[1])}"
        case _:
            kind = value.name.removeprefix("CATEGORY_").removeprefix("UNI_")
            source = _CATEGORIES[kind.removeprefix("NOT_")]
            return source.upper() if kind.startswith("NOT_") else source


def _escaped(code: int) -> str:
    return f"\\U{code:08x}"


@lru_cache(maxsize=64)
def characters_of(source: str, flags: int) -> Ranges:
    """The characters that `source`, a pattern of one character, matches: all of Unicode is tried."""
    ranges = []
    for found in re.finditer(f"(?:{source})+", _every_character(), flags):
        first, last = found.start(), found.end() - 1
        if first < _SURROGATES[0] <= last:
            ranges += [(first, _SURROGATES[0] - 1), (_SURROGATES[1], _code(last))]
        else:
            ranges.append((_code(first), _code(last)))
    return tuple(ranges)


@lru_cache(maxsize=1)
def _every_character() -> str:
    first, last = _SURROGATES
    return "".join(map(chr, range(first))) + "".join(map(chr, range(last, 0x110000)))


def _code(index: int) -> int:
    """The code point at `index` of all characters, which lack the surrogates."""
    return index if index < _SURROGATES[0] else index + _SURROGATES[1] - _SURROGATES[0]
