"""A deterministic automaton over equivalence classes of characters.

Shapes: Q states and a dead one, C classes.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.errors import RequestError
from gpt_cli.sampling.constraint.nfa import NFA, Ranges

Numbers = npt.NDArray[np.int64]

_MAX_STATES = 20_000
_MAX_VISITS = 4_000_000  # of states of the NFA, over all subsets: about three seconds
_CODE_POINTS = 0x110000


@dataclass(frozen=True)
class Classes:
    """A partition of all code points into intervals: interval i begins at starts[i] and is of class classes[i]."""

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
    """(Q + 1,): whether a text that ends in this state matches."""


def classify(sets: Iterable[Ranges]) -> tuple[Classes, dict[Ranges, frozenset[int]]]:
    """The coarsest classes such that each set is a union of them, and the classes of each set."""
    distinct = list(dict.fromkeys(sets))
    starts = sorted({0} | {edge for ranges in distinct for lo, hi in ranges for edge in (lo, hi + 1)} - {_CODE_POINTS})
    index = {start: i for i, start in enumerate(starts)} | {_CODE_POINTS: len(starts)}
    member = np.zeros((len(starts), len(distinct)), dtype=bool)
    for column, ranges in enumerate(distinct):
        for lo, hi in ranges:
            member[index[lo] : index[hi + 1], column] = True
    numbers: dict[bytes, int] = {}
    classes = [numbers.setdefault(row.tobytes(), len(numbers)) for row in member]
    members = np.array(classes)
    classes_of = {
        ranges: frozenset(np.unique(members[member[:, column]]).tolist()) for column, ranges in enumerate(distinct)
    }
    return Classes(starts, classes), classes_of


def to_dfa(nfa: NFA) -> DFA:
    """The automaton of `nfa` (the subset construction).

    Raises RequestError when it has too many states, or its states are too large subsets.
    """
    classes, classes_of = classify(ranges for edges in nfa.edges for ranges, _ in edges)
    start = _closure(nfa, {nfa.start})
    numbers = {start: 0}
    rows: list[dict[int, int]] = []
    pending, visits = [start], 0
    for states in pending:  # it grows meanwhile
        visits += len(states)
        if visits > _MAX_VISITS:
            raise RequestError(
                "the pattern is too large: too many of its parts can match the same text",
                hint="repeats of repeats such as (a{1,100}){1,100} do that",
            )
        reached: dict[int, set[int]] = {}
        for state in states:
            for ranges, target in nfa.edges[state]:
                for class_ in classes_of[ranges]:
                    reached.setdefault(class_, set()).add(target)
        row = {}
        for class_, targets in reached.items():
            closure = _closure(nfa, targets)
            if closure not in numbers:
                numbers[closure] = len(numbers)
                pending.append(closure)
                if len(pending) > _MAX_STATES:
                    raise RequestError(f"the pattern is too large: it needs more than {_MAX_STATES:,} states")
            row[class_] = numbers[closure]
        rows.append(row)
    table = np.full((len(rows) + 1, len(classes)), len(rows), dtype=np.int64)
    for state, row in enumerate(rows):
        table[state, list(row)] = list(row.values())
    return DFA(classes, table, np.array([nfa.accept in states for states in pending] + [False]))


def _closure(nfa: NFA, states: set[int]) -> frozenset[int]:
    """The epsilon closure of `states`."""
    reached, pending = set(states), list(states)
    while pending:
        for state in nfa.free[pending.pop()]:
            if state not in reached:
                reached.add(state)
                pending.append(state)
    return frozenset(reached)
