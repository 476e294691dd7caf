"""From a regular expression in the syntax of Python's `re` to a nondeterministic automaton over sets of characters.

`re` itself validates it and gives the characters of a class, so `\\w`, `(?i)` and the like mean what they mean to
`re.fullmatch`; `regex.py` parses its structure. The construction is Thompson's (1968).
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

_MAX_QUOTED = 200  # characters of a pattern in an error
_MAX_STATES = 20_000  # states of one automaton
_SURROGATES = (0xD800, 0xE000)
_CLASS_FLAGS = re.IGNORECASE | re.DOTALL | re.ASCII  # the flags that change which characters a class has


@dataclass
class NFA:
    """States are numbers; `accept` is the only accepting one."""

    free: list[list[int]] = field(default_factory=list)
    """Epsilon transitions of each state."""
    edges: list[list[tuple[Ranges, int]]] = field(default_factory=list)
    """Transitions of each state by a character in one of these ranges."""
    start: int = 0
    accept: int = 0

    def state(self) -> int:
        """A new state. Raises RequestError when there are too many."""
        if len(self.free) >= _MAX_STATES:
            raise RequestError(f"the pattern is too large: it needs more than {_MAX_STATES:,} states")
        self.free.append([])
        self.edges.append([])
        return len(self.free) - 1


def build_nfa(pattern: str) -> NFA:
    """The automaton of the texts that `re.fullmatch(pattern, text)` matches.

    Raises RequestError for an invalid pattern, and for parts that look at other text than they match: anchors (but ^ at
    its beginning and $ at its end), back references, lookarounds; also atomic groups and possessive repeats.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about a valid pattern
            re.compile(pattern)
        tree = regex.parse(pattern)
        automaton = NFA()
        automaton.start = automaton.state()
        automaton.accept = _add(automaton, automaton.start, tree, begins=True, ends=True)
    except (re.error, OverflowError) as error:
        raise RequestError(
            f"'{escape_control_chars(pattern[:_MAX_QUOTED])}' is not a regular expression: {error}",
            hint="it is read as Python's re reads it",
        ) from None
    except RecursionError:
        raise RequestError("the pattern is nested too deeply") from None
    return automaton


def _add(nfa: NFA, state: int, node: regex.Node, *, begins: bool = False, ends: bool = False) -> int:
    """Add what `node` matches after `state`; returns the state in which it has.

    `begins` and `ends`: no text comes before or after it, so an anchor is allowed there.
    """
    match node:
        case regex.Character(source, flags):
            end = nfa.state()
            nfa.edges[state].append((_characters(source, flags), end))
            return end
        case regex.Concatenation(items):
            first, last = 0, len(items)
            while begins and first < last and items[first] == regex.Anchor(at_end=False):
                first += 1
            while ends and first < last and items[last - 1] == regex.Anchor(at_end=True):
                last -= 1
            for i in range(first, last):
                state = _add(nfa, state, items[i], begins=begins and i == first, ends=ends and i == last - 1)
            return state
        case regex.Alternation(items):
            end = nfa.state()
            for item in items:
                begin = nfa.state()
                nfa.free[state].append(begin)
                nfa.free[_add(nfa, begin, item, begins=begins, ends=ends)].append(end)
            return end
        case regex.Repeat(item, minimum, maximum):
            return _repeat(nfa, state, item, minimum, maximum)
        case _:
            return regex.unsupported(regex.ANCHOR)


def _repeat(nfa: NFA, state: int, item: regex.Node, minimum: int, maximum: int | None) -> int:
    for _ in range(minimum):
        state = _add(nfa, state, item)
    end = nfa.state()
    if maximum is None:
        loop = nfa.state()
        nfa.free[state].append(loop)
        nfa.free[_add(nfa, loop, item)].append(loop)
        nfa.free[loop].append(end)
        return end
    nfa.free[state].append(end)
    for _ in range(maximum - minimum):
        state = _add(nfa, state, item)
        nfa.free[state].append(end)
    return end


def _characters(source: str, flags: int) -> Ranges:
    """The characters that a one-character pattern matches, without `re` if it is a literal."""
    literal = source.removeprefix("\\")
    is_literal = len(literal) == 1 and source != "." and not (len(source) == 2 and literal.isalnum())
    if is_literal and not flags & re.IGNORECASE:
        return () if _SURROGATES[0] <= ord(literal) < _SURROGATES[1] else ((ord(literal), ord(literal)),)
    return characters_of(source, flags & _CLASS_FLAGS)


@lru_cache(maxsize=64)
def characters_of(source: str, flags: int) -> Ranges:
    """The characters that `source`, a pattern of one character, matches: `re` searches a text of all characters."""
    ranges = []
    with warnings.catch_warnings(action="ignore"):  # of sets such as [[a]
        compiled = re.compile(f"(?:{source})+", flags)
    for match in compiled.finditer(_every_character()):
        first, last = match.start(), match.end() - 1
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
