"""Plain text tables: aligned by what a terminal shows, no wider than 80 columns, and safe to show on one."""

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from gpt_cli.terminal.escape import WIDTH, character_width, display_width, escape_control_chars, wrap_line

_GAP = "  "
_FEWEST = 40  # columns of a terminal that tables are folded for
_NARROWEST = 16  # columns of a text that is folded, or as many as its longest word has

Words = list[str]
"""A cell as the parts between which it may be folded."""


def terminal_columns() -> int:
    """Columns that there are for a table: those of the terminal, from 40 to 80; 80 where there is none."""
    return min(WIDTH, max(_FEWEST, shutil.get_terminal_size((WIDTH, 24)).columns))


def render_table(
    rows: Sequence[Sequence[object]],
    *,
    header: Sequence[str] = (),
    right: Collection[int] = (),
    width: int | Literal["terminal"] | None = "terminal",
) -> str:
    """Rows as lines of aligned columns: a column of numbers, or one in `right`, to the right, any other to the left.

    Cells are shown by `render_cell`, a list or tuple as its parts with spaces between. Rows have equally many cells;
    `header`, if there is one, has as many. What is wider than `width` is folded at spaces, headings first, then the
    texts to the left; a list is folded between its parts. Where that is not enough, the first column stands above
    the others. None: every row is one line, however long.
    """
    width = terminal_columns() if width == "terminal" else width
    cells = [[_words(value) for value in row] for row in rows]
    headings = [_words(heading) for heading in header]
    numeric = [all(isinstance(value, int | float | None) for value in column) for column in zip(*rows, strict=True)]
    numeric = numeric or [False] * len(header)
    to_the_right = [is_numeric or index in right for index, is_numeric in enumerate(numeric)]
    widths = _widths(cells, headings, to_the_right, width)
    if width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        return _stacked(rows, header, right, width)
    lines = list(_folded(headings, widths, to_the_right, at_the_foot=True)) if header else []
    for row in cells:
        lines += _folded(row, widths, to_the_right)
    return "\n".join(lines)


def _stacked(rows: Sequence[Sequence[object]], header: Sequence[str], right: Collection[int], width: int) -> str:
    """The first cell of each row above the others, in line or, where there is no room for that, one below the other."""
    names = [" ".join(_words(row[0])) for row in rows]
    others = [row[1:] for row in rows]
    beside = render_table(others, header=header[1:], right=[index - 1 for index in right], width=None).split("\n")
    if max(map(display_width, beside)) + len(_GAP) <= width:
        lines = [_GAP + beside.pop(0)] if header else []
        lines += [line for name, values in zip(names, beside, strict=True) for line in (name, _GAP + values)]
    else:
        headings = header[1:] or [""] * max(map(len, others))
        lines = []
        for name, values in zip(names, others, strict=True):
            pairs = zip(headings, values, strict=True)
            lines += [name, *(f"{_GAP}{heading} {' '.join(_words(value))}" for heading, value in pairs)]
    return "\n".join(piece for line in lines for piece in wrap_line(line.rstrip(), width))


def render_pairs(pairs: Mapping[str, object]) -> str:
    """Names and values as two columns, both to the left: facts of different kinds under each other."""
    return render_table([(name, value if _is_list(value) else render_cell(value)) for name, value in pairs.items()])


def render_cell(value: object) -> str:
    """A value as a table shows it: 1,234 and 1.2346; nothing for None; text with control characters visible."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape_control_chars(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


def format_duration(seconds: float) -> str:
    """A duration as it is shown everywhere: 0:07, 12:30, 1:05:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def fold(words: Sequence[str], width: int) -> list[str]:
    """`words` with a space between them, in as few lines as hold them in `width` columns; a longer word stays whole."""
    lines: list[str] = []
    for index, word in enumerate(words):
        if index and display_width(lines[-1]) + 1 + display_width(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _words(value: object) -> Words:
    if isinstance(value, list | tuple):
        return [render_cell(part) for part in value]
    return render_cell(value).split(" ")


def _widths(
    cells: Sequence[Sequence[Words]], headings: Sequence[Words], to_the_right: Sequence[bool], limit: int | None
) -> list[int]:
    """The columns' widths: what they hold, less what can be folded of it where all is too wide."""
    every = [*([headings] if headings else []), *cells]
    widths = [max(display_width(" ".join(words)) for words in column) for column in zip(*every, strict=True)]
    if limit is None:
        return widths
    body = [max(display_width(" ".join(words)) for words in column) for column in zip(*cells, strict=True)] or widths
    narrow = [_in_two_lines(words) for words in headings] or [0] * len(body)
    widths = _shrunk(widths, [width - max(pair) for width, *pair in zip(widths, narrow, body, strict=True)], limit)
    longest = [max(display_width(word) for words in column for word in words) for column in zip(*every, strict=True)]
    texts = [
        0 if is_right else width - max(word, _NARROWEST)
        for width, word, is_right in zip(widths, longest, to_the_right, strict=True)
    ]
    return _shrunk(widths, texts, limit)


def _in_two_lines(words: Words) -> int:
    """The columns that `words` need in two lines."""
    lines = [(" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(len(words))]
    return min(max(map(display_width, pair)) for pair in lines)


def _shrunk(widths: Sequence[int], spare: Sequence[int], limit: int) -> list[int]:
    """`widths` less up to `spare` each, the columns with most to spare first, until all fit."""
    fitting = list(widths)
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - limit
    for index in sorted(range(len(widths)), key=lambda index: -spare[index]):
        taken = max(0, min(over, spare[index]))
        fitting[index] -= taken
        over -= taken
    return fitting


def _folded(
    row: Sequence[Words], widths: Sequence[int], to_the_right: Sequence[bool], *, at_the_foot: bool = False
) -> Iterator[str]:
    """The lines of a row, as many as its longest cell needs; of a heading, the last lines stand side by side."""
    columns = [fold(words, width) for words, width in zip(row, widths, strict=True)]
    height = max(map(len, columns))
    for column in columns:
        missing = [""] * (height - len(column))
        column[:] = missing + column if at_the_foot else column + missing
    for line in zip(*columns, strict=True):
        yield _GAP.join(map(_pad, line, widths, to_the_right)).rstrip()


def _pad(text: str, width: int, to_the_right: bool) -> str:
    space = " " * (width - display_width(text))
    return space + text if to_the_right else text + space


def truncate(text: str, width: int) -> str:
    """`text` of at most `width` characters; three dots stand for the rest."""
    return text if len(text) <= width else text[: width - 3] + "..."


def shorten(text: str, columns: int) -> str:
    """`text`, cut to so many columns of a terminal; an ellipsis says that it was."""
    if display_width(text) <= columns:
        return text
    kept, width = [], 1  # of the ellipsis
    for character in text:
        width += character_width(character)
        if width > columns:
            break
        kept.append(character)
    return "".join(kept) + "…"
