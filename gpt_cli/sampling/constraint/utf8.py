"""A UTF-8 decoder as a table: from bytes to classes of characters, one byte at a time.

Shapes: D nodes; a node is a position inside a character, the root is between two.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from gpt_cli.sampling.constraint.dfa import Classes, Numbers

INVALID = -1
# Lead bytes, how many bytes follow, and the code points that they may begin (RFC 3629, section 4): no overlong form,
# no surrogate, nothing past U+10FFFF.
_LEADS = [
    *((lead, 1, (lead & 0x1F) << 6, 0x80, 0x7FF) for lead in range(0xC2, 0xE0)),
    *((lead, 2, (lead & 0x0F) << 12, 0x800, 0xD7FF if lead == 0xED else 0xFFFF) for lead in range(0xE0, 0xF0)),
    *((lead, 3, (lead & 0x07) << 18, 0x10000, 0x10FFFF) for lead in range(0xF0, 0xF5)),
]


@dataclass(frozen=True)
class Utf8DFA:
    """The transition of each byte from each node; equivalent nodes are merged."""

    table: Numbers
    """(D, 256): the next node; -2 - c where the byte completes a character of class c; INVALID."""
    root: int

    def __len__(self) -> int:
        return len(self.table)


def make_utf8_dfa(classes: Classes) -> Utf8DFA:
    """The decoder to these classes. A child has a smaller number than its parents."""
    rows: list[tuple[int, ...]] = []
    numbers: dict[tuple[int, ...], int] = {}
    uniform: dict[tuple[int, int], int] = {}

    def node(row: tuple[int, ...]) -> int:
        if row not in numbers:
            numbers[row] = len(rows)
            rows.append(row)
        return numbers[row]

    def span(base: int, n_byte: int, low: int, high: int) -> int:
        """The node from which `n_byte` more bytes give the code points from `base` on; valid are low to high."""
        last = base + 64**n_byte - 1
        if last < low or base > high:
            return INVALID
        if n_byte == 0:
            return -2 - classes.of(base)
        within = low <= base and last <= high
        interval = bisect_right(classes.starts, base) - 1
        is_uniform = within and (interval + 1 == len(classes.starts) or last < classes.starts[interval + 1])
        key = (n_byte, classes.classes[interval])
        if is_uniform and key in uniform:
            return uniform[key]
        width = 64 ** (n_byte - 1)
        children = tuple(span(base + i * width, n_byte - 1, low, high) for i in range(64))
        number = node((INVALID,) * 0x80 + children + (INVALID,) * 0x40)
        if is_uniform:
            uniform[key] = number
        return number

    root = [-2 - classes.of(byte) if byte < 0x80 else INVALID for byte in range(256)]
    for lead, n_byte, base, low, high in _LEADS:
        root[lead] = span(base, n_byte, low, high)
    return Utf8DFA(root=node(tuple(root)), table=np.array(rows, dtype=np.int64))
