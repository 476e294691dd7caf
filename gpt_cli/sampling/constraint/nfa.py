"""A regular expression, in the syntax and the meaning of Python's `re`, to an automaton over sets of characters.

`re` says whether it is one and which characters a class means, so `\\w`, `(?i)` and the rest mean here what they mean
to `re.fullmatch`; how its parts are put together is read by `regex.py`. The construction is Thompson's (1968).
"""

import re
import warnings
from dataclasses import dataclass, field
from functools import lru_cache

from gpt_cli.errors import RequestError
from gpt_cli.sampling.constraint import regex
from gpt_cli.terminal.escape import escape_control_chars

Ranges = tuple[tuple[int, int], ...]
"""Inclusive ranges of code points, in order."""

_SHOWN = 200  # characters of a pattern in an error
_LARGEST = 20_000  # states of one automaton
_SURROGATES = (0xD800, 0xE000)
_MATTERS = re.IGNORECASE | re.DOTALL | re.ASCII  # the flags that change which characters a class has


@dataclass
class NFA:
    """States are numbers; `start` is the first, `accept` the one in which a text has matched."""

    free: list[list[int]] = field(default_factory=list)
    """Epsilon transitions of each state."""
    edges: list[list[tuple[Ranges, int]]] = field(default_factory=list)
    """Transitions of each state by a character in one of these ranges."""
    start: int = 0
    accept: int = 0

    def state(self) -> int:
        """A new state. Raises RequestError when there are too many."""
        if len(self.free) >= _LARGEST:
            raise RequestError(f"the pattern is too large: it needs more than {_LARGEST:,} states")
        self.free.append([])
        self.edges.append([])
        return len(self.free) - 1


def build_nfa(pattern: str) -> NFA:
    """The automaton of what `re.fullmatch(pattern, text)` matches.

    Raises RequestError for what is no regular expression (of Python), and for parts of one that look at other text
    than they match: anchors (but ^ at its beginning and $ at its end), back references, lookarounds, and atomic groups
    and possessive repeats, which give up matches.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # a doubtful pattern still has one meaning
            re.compile(pattern)
        tree = regex.parse(pattern)
        automaton = NFA()
        automaton.start = automaton.state()
        automaton.accept = _add(automaton, automaton.start, tree, begins=True, ends=True)
    except (re.error, OverflowError) as error:
        raise RequestError(
            f"'{escape_control_chars(pattern[:_SHOWN])}' is not a regular expression: {error}",
            hint="it is read as Python's re reads it",
        ) from None
    except RecursionError:
        raise RequestError("the pattern is nested too deeply") from None
    return automaton


def _add(nfa: NFA, at: int, node: regex.Node, *, begins: bool = False, ends: bool = False) -> int:
    """Add what `node` matches after the state `at`; returns the state in which it has.

    `begins` and `ends` say that nothing of the text is before or after it: there an anchor may stand.
    """
    match node:
        case regex.Character(source, flags):
            end = nfa.state()
            nfa.edges[at].append((_characters(source, flags), end))
            return end
        case regex.Concatenation(items):
            first, last = 0, len(items)
            while begins and first < last and items[first] == regex.Anchor(at_end=False):
                first += 1
            while ends and first < last and items[last - 1] == regex.Anchor(at_end=True):
                last -= 1
            for i in range(first, last):
                at = _add(nfa, at, items[i], begins=begins and i == first, ends=ends and i == last - 1)
            return at
        case regex.Alternation(items):
            end = nfa.state()
            for item in items:
                begin = nfa.state()
                nfa.free[at].append(begin)
                nfa.free[_add(nfa, begin, item, begins=begins, ends=ends)].append(end)
            return end
        case regex.Repeat(item, least, most):
            return _repeat(nfa, at, item, least, most)
        case _:
            return regex.unsupported(regex.ANCHOR)


def _repeat(nfa: NFA, at: int, item: regex.Node, least: int, most: int | None) -> int:
    for _ in range(least):
        at = _add(nfa, at, item)
    end = nfa.state()
    if most is None:
        loop = nfa.state()
        nfa.free[at].append(loop)
        nfa.free[_add(nfa, loop, item)].append(loop)
        nfa.free[loop].append(end)
        return end
    nfa.free[at].append(end)
    for _ in range(most - least):
        at = _add(nfa, at, item)
        nfa.free[at].append(end)
    return end


def _characters(source: str, flags: int) -> Ranges:
    """The characters that a one-character pattern matches; for one that stands for itself `re` need not be asked."""
    literal = source.removeprefix("\\")
    is_literal = len(literal) == 1 and source != "." and not (len(source) == 2 and literal.isalnum())
    if is_literal and not flags & re.IGNORECASE:
        return () if _SURROGATES[0] <= ord(literal) < _SURROGATES[1] else ((ord(literal), ord(literal)),)
    return characters_of(source, flags & _MATTERS)


@lru_cache(maxsize=64)
def characters_of(source: str, flags: int) -> Ranges:
    """The characters that `source`, a pattern of one character, matches: all of Unicode is tried."""
    ranges = []
    with warnings.catch_warnings(action="ignore"):  # of sets such as [[a]
        compiled = re.compile(f"(?:{source})+", flags)
    for found in compiled.finditer(_every_character()):
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
