"""A parser of the regular expressions that sampling can follow: a subset of the syntax of Python's `re`.

Characters, classes, escapes, groups, flags, `|` and repeats; `^` and `$` at the ends. A part that matches one character
is stored as its source: `nfa.characters_of` evaluates it with `re`.
"""

import re
from dataclasses import dataclass
from typing import NoReturn

from gpt_cli.errors import RequestError

_TYPES = re.ASCII | re.UNICODE  # exclusive
_FLAGS = {
    **{"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL},
    **{"u": re.UNICODE, "x": re.VERBOSE, "L": re.LOCALE},
}
_WHITESPACE = frozenset(" \t\n\r\v\f")  # left out by (?x)
_OCTAL, _DIGITS = frozenset("01234567"), frozenset("0123456789")
_ESCAPE_DIGITS = {"x": 2, "u": 4, "U": 8}
_AT_BEGIN, _AT_END = (r"\A",), (r"\Z", r"\z")

BACK_REFERENCE = r"a back reference such as \1"
LOOKAROUND = "a lookahead or lookbehind"
ANCHOR = r"an anchor such as ^, $ or \b inside the pattern"
CONDITIONAL = "a conditional group"
ATOMIC = "an atomic group"
POSSESSIVE = "a possessive repeat such as *+"


@dataclass(frozen=True)
class Character:
    """One character out of a set: `source`, such as `a`, `\\w` or `[^a-z]`, is a pattern of `re` for it."""

    source: str
    flags: int


@dataclass(frozen=True)
class Concatenation:
    """All of `items`, one after another; a group is one, too."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True)
class Alternation:
    """One of `items`."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True)
class Repeat:
    """`least` to `most` times `item`; `most` is None where there is no limit. Greedy or not, the same texts match."""

    item: "Node"
    least: int
    most: int | None


@dataclass(frozen=True)
class Anchor:
    """`^` or `\\A`, or at the end `$` or `\\Z`."""

    at_end: bool


Node = Character | Concatenation | Alternation | Repeat | Anchor


def unsupported(feature: str) -> NoReturn:
    """Raise RequestError for a part of a pattern that looks at other text than it matches, or gives up matches."""
    raise RequestError(
        f"the pattern has {feature}, which sampling cannot follow",
        hint="characters, classes, groups, | and repeats are supported",
    )


def parse(pattern: str) -> Node:
    """The syntax tree of a pattern that `re.compile` accepts.

    Raises RequestError for back references, lookarounds, word boundaries, conditional and atomic groups and possessive
    repeats, RecursionError for groups that are nested too deeply.
    """
    parser = _Parser(pattern)
    tree = parser.alternation(re.UNICODE)
    assert parser.next is None, f"{parser.next!r} is left over of {pattern!r}"
    return tree


class _Parser:
    """Recursive descent. A token is a character, or a backslash with the character after it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0

    @property
    def next(self) -> str | None:
        """The next token, None at the end."""
        width = 2 if self._pattern.startswith("\\", self._position) else 1
        return self._pattern[self._position : self._position + width] or None

    def _take(self) -> str:
        token = self.next or ""
        self._position += len(token)
        return token

    def _accept(self, text: str) -> bool:
        accepted = self._pattern.startswith(text, self._position)
        self._position += len(text) if accepted else 0
        return accepted

    def _skip_past(self, token: str) -> None:
        while self.next is not None and self._take() != token:
            pass

    def _run_of(self, characters: frozenset[str], limit: int | None = None) -> str:
        start = self._position
        while self.next in characters and (limit is None or self._position < start + limit):
            self._position += 1
        return self._pattern[start : self._position]

    def alternation(self, flags: int) -> Node:
        """Parse up to the end, or up to (not including) a closing parenthesis."""
        first, flags = self._concatenation(flags)  # flags at the beginning hold for all that follows
        items = [first]
        while self._accept("|"):
            items.append(self._concatenation(flags)[0])
        return items[0] if len(items) == 1 else Alternation(tuple(items))

    def _concatenation(self, flags: int) -> tuple[Node, int]:
        items: list[Node] = []
        while (token := self.next) is not None and token not in ("|", ")"):
            if flags & re.VERBOSE and token in _WHITESPACE:
                self._take()
            elif flags & re.VERBOSE and token == "#":
                self._skip_past("\n")
            elif token in ("*", "+", "?", "{"):
                self._repeat(items, flags)
            elif self._accept("(?#"):
                self._skip_past(")")
            elif token == "(":
                group, flags = self._group(flags)
                items += [] if group is None else [group]
            else:
                items.append(self._atom(flags))
        return Concatenation(tuple(items)), flags

    def _repeat(self, items: list[Node], flags: int) -> None:
        """Replace the last of `items` by its repeat; a brace that is no quantifier is a character."""
        start, token = self._position, self._take()
        minimum, maximum = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(token, (0, None))
        if token == "{":
            low = self._run_of(_DIGITS)
            high = self._run_of(_DIGITS) if self._accept(",") else low
            if self._pattern.startswith("{}", start) or not self._accept("}"):
                self._position = start + 1
                items.append(Character("\\{", flags))
                return
            minimum, maximum = int(low or 0), int(high) if high else None
        if not self._accept("?") and self._accept("+"):
            unsupported(POSSESSIVE)
        items[-1] = Repeat(items[-1], minimum, maximum)

    def _group(self, flags: int) -> tuple[Node | None, int]:
        """The node between parentheses (None for flags alone), and the flags that hold after it."""
        inside = flags
        if self._accept("(?P<"):
            self._skip_past(">")
        elif self._accept("(?P="):
            unsupported(BACK_REFERENCE)
        elif self._accept("(?("):
            unsupported(CONDITIONAL)
        elif self._accept("(?>"):
            unsupported(ATOMIC)
        elif any(self._accept(start) for start in ("(?=", "(?!", "(?<=", "(?<!")):
            unsupported(LOOKAROUND)
        elif self._accept("(?"):
            inside = self._flags(flags)
            if self._accept(")"):
                return None, inside
            self._accept(":")
        else:
            self._accept("(")
        tree = self.alternation(inside)
        self._accept(")")
        return Concatenation((tree,)), flags

    def _flags(self, flags: int) -> int:
        """`flags`, changed by letters such as `i-s`."""
        while (token := self.next) in _FLAGS:
            self._take()
            if _FLAGS[token] & _TYPES:
                flags &= ~_TYPES
            flags |= _FLAGS[token]
        if self._accept("-"):
            while (token := self.next) in _FLAGS:
                self._take()
                flags &= ~_FLAGS[token]
        return flags

    def _atom(self, flags: int) -> Node:
        token = self._take()
        if token in ("^", "$") or token in _AT_BEGIN or token in _AT_END:
            return Anchor(token == "$" or token in _AT_END)
        if token in (r"\b", r"\B"):
            unsupported(ANCHOR)
        if token == "[":
            return Character(token + self._class(), flags)
        if token == ".":
            return Character(token, flags)
        if token[0] != "\\":
            return Character(re.escape(token), flags)
        if token[1] in _DIGITS:
            return Character(token + self._octal(token[1]), flags)
        if token[1] in _ESCAPE_DIGITS:
            start = self._position
            self._position += _ESCAPE_DIGITS[token[1]]
            return Character(token + self._pattern[start : self._position], flags)
        if token == r"\N":
            start = self._position
            self._skip_past("}")
            return Character(token + self._pattern[start : self._position], flags)
        return Character(token, flags)

    def _class(self) -> str:
        """The rest of a class; a bracket at its beginning does not close it."""
        start = self._position
        self._accept("^")
        self._take()
        self._skip_past("]")
        return self._pattern[start : self._position]

    def _octal(self, first: str) -> str:
        """The rest of an octal escape: up to two digits after a zero, else three together. Others are references."""
        if first == "0":
            return self._run_of(_OCTAL, limit=2)
        digits = self._run_of(_OCTAL, limit=2)
        if first not in _OCTAL or len(digits) < 2:
            unsupported(BACK_REFERENCE)
        return digits
