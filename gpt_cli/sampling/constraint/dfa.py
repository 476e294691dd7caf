"""An automaton made deterministic, over classes of characters that it cannot tell apart.

Shapes: Q states and one more that is dead, C classes.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.errors import RequestError
from gpt_cli.sampling.constraint.nfa import NFA, Ranges

Numbers = npt.NDArray[np.int64]

_LARGEST = 20_000  # states
_CODE_POINTS = 0x110000


@dataclass(frozen=True)
class Classes:
    """All code points, cut into intervals: interval i begins at starts[i], and its characters are of classes[i]."""

    starts: list[int]
    classes: list[int]

    def __len__(self) -> int:
        return max(self.classes) + 1

    def of(self, code: int) -> int:
        return self.classes[bisect_right(self.starts, code) - 1]


@dataclass(frozen=True)
class DFA:
    """State 0 is the start; the last one is dead, and only leads to itself."""

    classes: Classes
    next: Numbers
    """(Q + 1, C): the state after a character of a class."""
    accepts: npt.NDArray[np.bool_]
    """(Q + 1,): whether a text that ends here matches."""


def classify(sets: Iterable[Ranges]) -> tuple[Classes, dict[Ranges, frozenset[int]]]:
    """The coarsest classes of which every one of the sets is made, and the classes of each set."""
    distinct = list(dict.fromkeys(sets))
    starts = sorted({0} | {edge for ranges in distinct for lo, hi in ranges for edge in (lo, hi + 1)} - {_CODE_POINTS})
    place = {start: i for i, start in enumerate(starts)} | {_CODE_POINTS: len(starts)}
    member = np.zeros((len(starts), len(distinct)), dtype=bool)
    for column, ranges in enumerate(distinct):
        for lo, hi in ranges:
            member[place[lo] : place[hi + 1], column] = True
    numbers: dict[bytes, int] = {}
    classes = [numbers.setdefault(row.tobytes(), len(numbers)) for row in member]
    members = np.array(classes)
    made_of = {
        ranges: frozenset(np.unique(members[member[:, column]]).tolist()) for column, ranges in enumerate(distinct)
    }
    return Classes(starts, classes), made_of


def to_dfa(nfa: NFA, alphabet: Ranges) -> DFA:
    """The automaton of what `nfa` matches with characters of `alphabet` alone (the subset construction).

    Raises RequestError when it has too many states.
    """
    classes, made_of = classify([alphabet, *(ranges for edges in nfa.edges for ranges, _ in edges)])
    start = _closure(nfa, {nfa.start})
    numbers = {start: 0}
    rows: list[dict[int, int]] = []
    pending = [start]
    for states in pending:  # which grows meanwhile
        reached: dict[int, set[int]] = {}
        for state in states:
            for ranges, target in nfa.edges[state]:
                for class_ in made_of[ranges] & made_of[alphabet]:
                    reached.setdefault(class_, set()).add(target)
        row = {}
        for class_, targets in reached.items():
            following = _closure(nfa, targets)
            if following not in numbers:
                numbers[following] = len(numbers)
                pending.append(following)
                if len(pending) > _LARGEST:
                    raise RequestError(f"the pattern is too large: it needs more than {_LARGEST:,} states")
            row[class_] = numbers[following]
        rows.append(row)
    table = np.full((len(rows) + 1, len(classes)), len(rows), dtype=np.int64)
    for state, row in enumerate(rows):
        table[state, list(row)] = list(row.values())
    return DFA(classes, table, np.array([nfa.accept in states for states in pending] + [False]))


def _closure(nfa: NFA, states: set[int]) -> frozenset[int]:
    """`states`, and where they lead without a character."""
    reached, pending = set(states), list(states)
    while pending:
        for state in nfa.free[pending.pop()]:
            if state not in reached:
                reached.add(state)
                pending.append(state)
    return frozenset(reached)
