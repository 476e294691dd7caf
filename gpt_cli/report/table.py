"""Plain text tables: aligned by what a terminal shows, and safe to show on one."""

import unicodedata
from collections.abc import Collection, Mapping, Sequence

from gpt_cli.errors import escape_untrusted

_GAP = "  "


def render_table(rows: Sequence[Sequence[object]], *, header: Sequence[str] = (), right: Collection[int] = ()) -> str:
    """Rows as lines of aligned columns: a column of numbers, or one in `right`, to the right, any other to the left.

    Cells are shown by `render_cell`. Rows have equally many cells; `header`, if there is one, has as many.
    """
    cells = [[render_cell(value) for value in row] for row in rows]
    lines = [list(header), *cells] if header else cells
    widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
    numeric = [all(isinstance(value, int | float | None) for value in column) for column in zip(*rows, strict=True)]
    numeric = numeric or [False] * len(widths)
    to_the_right = [is_numeric or index in right for index, is_numeric in enumerate(numeric)]
    return "\n".join(_GAP.join(map(_pad, line, widths, to_the_right)).rstrip() for line in lines)


def render_pairs(pairs: Mapping[str, object]) -> str:
    """Names and values as two columns, both to the left: facts of different kinds under each other."""
    return render_table([(name, render_cell(value)) for name, value in pairs.items()])


def render_cell(value: object) -> str:
    """A value as a table shows it: 1,234 and 1.2346; nothing for None; text with control characters visible."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape_untrusted(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


def _pad(text: str, width: int, to_the_right: bool) -> str:
    space = " " * (width - display_width(text))
    return space + text if to_the_right else text + space


def shorten(text: str, columns: int) -> str:
    """`text`, cut to so many columns of a terminal; an ellipsis says that it was."""
    if display_width(text) <= columns:
        return text
    kept, width = [], 1  # of the ellipsis
    for character in text:
        width += _character_width(character)
        if width > columns:
            break
        kept.append(character)
    return "".join(kept) + "…"


def display_width(text: str) -> int:
    """Terminal columns of `text`: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
