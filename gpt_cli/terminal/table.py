"""Plain text tables, aligned by display width, at most 80 columns wide, with control characters escaped."""

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from gpt_cli.terminal.escape import WIDTH, character_width, display_width, escape_control_chars, wrap_line

_GAP = "  "
_MIN_TERMINAL = 40  # columns of the narrowest terminal that tables are folded for
_MIN_TEXT = 16  # columns of a folded text, or the width of its longest word

Words = list[str]
"""A cell as parts, between which it may be folded."""


def terminal_columns() -> int:
    """The width for tables: that of the terminal, from 40 to 80; 80 without one."""
    return min(WIDTH, max(_MIN_TERMINAL, shutil.get_terminal_size((WIDTH, 24)).columns))


def render_table(
    rows: Sequence[Sequence[object]],
    *,
    header: Sequence[str] = (),
    right: Collection[int] = (),
    width: int | Literal["terminal"] | None = "terminal",
) -> str:
    """Rows as lines of aligned columns; numbers and the columns in `right` are right-aligned, others left-aligned.

    Cells are formatted by `render_cell`, a list or tuple as its parts with spaces between. Rows and `header` have the
    same number of cells. A table wider than `width` is folded at spaces, headings first, then left-aligned texts; a
    list is folded between its parts. If that is not enough, the first column is put above the others. None: no folding.
    """
    width = terminal_columns() if width == "terminal" else width
    cells = [[_words(value) for value in row] for row in rows]
    headings = [_words(heading) for heading in header]
    numeric = [all(isinstance(value, int | float | None) for value in column) for column in zip(*rows, strict=True)]
    numeric = numeric or [False] * len(header)
    right_aligned = [is_numeric or index in right for index, is_numeric in enumerate(numeric)]
    widths = _widths(cells, headings, right_aligned, width)
    if width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        return _stacked(rows, header, right, width)
    lines = list(_folded(headings, widths, right_aligned, bottom_aligned=True)) if header else []
    for row in cells:
        lines += _folded(row, widths, right_aligned)
    return "\n".join(lines)


def _stacked(rows: Sequence[Sequence[object]], header: Sequence[str], right: Collection[int], width: int) -> str:
    """The first cell of each row above the others, which are in one line or, if it is too long, below each other."""
    names = [" ".join(_words(row[0])) for row in rows]
    other_cells = [row[1:] for row in rows]
    table = render_table(other_cells, header=header[1:], right=[index - 1 for index in right], width=None).split("\n")
    if max(map(display_width, table)) + len(_GAP) <= width:
        lines = [_GAP + table.pop(0)] if header else []
        lines += [line for name, values in zip(names, table, strict=True) for line in (name, _GAP + values)]
    else:
        headings = header[1:] or [""] * max(map(len, other_cells))
        lines = []
        for name, values in zip(names, other_cells, strict=True):
            lines.append(name)
            for heading, value in zip(headings, values, strict=True):
                first, *others = fold([heading, *_words(value)], width - 2 * len(_GAP))
                lines += [_GAP + first, *(2 * _GAP + line for line in others)]
    return "\n".join(piece for line in lines for piece in wrap_line(line.rstrip(), width))


def render_pairs(pairs: Mapping[str, object]) -> str:
    """Names and values as two left-aligned columns."""
    return render_table(
        [(name, value if isinstance(value, list | tuple) else render_cell(value)) for name, value in pairs.items()]
    )


def render_cell(value: object) -> str:
    """A value as text: 1,234 and 1.2346; "" for None; control characters are escaped."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape_control_chars(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


def fold(words: Sequence[str], width: int) -> list[str]:
    """Join `words` by spaces into as few lines of `width` columns as possible; a longer word is not cut."""
    lines: list[str] = []
    for index, word in enumerate(words):
        if index and display_width(lines[-1]) + 1 + display_width(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _words(value: object) -> Words:
    if isinstance(value, list | tuple):
        return [render_cell(part) for part in value]
    return render_cell(value).split(" ")


def _widths(
    cells: Sequence[Sequence[Words]], headings: Sequence[Words], right_aligned: Sequence[bool], limit: int | None
) -> list[int]:
    """The width of each column: that of its widest cell, less what has to be folded to fit `limit`."""
    all_rows = [*([headings] if headings else []), *cells]
    widths = [max(display_width(" ".join(words)) for words in column) for column in zip(*all_rows, strict=True)]
    if limit is None:
        return widths
    body_widths = [
        max(display_width(" ".join(words)) for words in column) for column in zip(*cells, strict=True)
    ] or widths
    heading_widths = [_in_two_lines(words) for words in headings] or [0] * len(body_widths)
    widths = _shrunk(
        widths, [width - max(pair) for width, *pair in zip(widths, heading_widths, body_widths, strict=True)], limit
    )
    word_widths = [
        max((display_width(word) for words in column for word in words), default=0)
        for column in zip(*all_rows, strict=True)
    ]
    spare = [
        0 if is_right else width - max(word, _MIN_TEXT)
        for width, word, is_right in zip(widths, word_widths, right_aligned, strict=True)
    ]
    return _shrunk(widths, spare, limit)


def _in_two_lines(words: Words) -> int:
    """The least width of `words` in two lines."""
    lines = [(" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(len(words))]
    return min(max(map(display_width, pair)) for pair in lines)


def _shrunk(widths: Sequence[int], spare: Sequence[int], limit: int) -> list[int]:
    """`widths` reduced by up to `spare` each, the largest spare first, until they fit `limit`."""
    shrunk = list(widths)
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - limit
    for index in sorted(range(len(widths)), key=lambda index: -spare[index]):
        cut = max(0, min(excess, spare[index]))
        shrunk[index] -= cut
        excess -= cut
    return shrunk


def _folded(
    row: Sequence[Words], widths: Sequence[int], right_aligned: Sequence[bool], *, bottom_aligned: bool = False
) -> Iterator[str]:
    """The lines of a row, as many as its highest cell has; `bottom_aligned` for headings."""
    columns = [fold(words, width) for words, width in zip(row, widths, strict=True)]
    height = max(map(len, columns))
    for column in columns:
        missing = [""] * (height - len(column))
        column[:] = missing + column if bottom_aligned else column + missing
    for line in zip(*columns, strict=True):
        yield _GAP.join(map(_pad, line, widths, right_aligned)).rstrip()


def _pad(text: str, width: int, right_aligned: bool) -> str:
    space = " " * (width - display_width(text))
    return space + text if right_aligned else text + space


def truncate(text: str, width: int) -> str:
    """`text` cut to at most `width` characters, with three dots if it was cut."""
    return text if len(text) <= width else text[: width - 3] + "..."


def shorten(text: str, columns: int) -> str:
    """`text` cut to at most `columns` terminal columns, with an ellipsis if it was cut."""
    if display_width(text) <= columns:
        return text
    characters, width = [], 1  # of the ellipsis
    for character in text:
        width += character_width(character)
        if width > columns:
            break
        characters.append(character)
    return "".join(characters) + "…"
