"""Plain text tables: columns aligned by display width, cells escaped and whole."""

from collections.abc import Collection, Mapping, Sequence

from gpt_cli.terminal.escape import display_width, escape_control_chars


def render_table(rows: Sequence[Sequence[object]], *, header: Sequence[str] = (), right: Collection[int] = ()) -> str:
    """Rows as lines of aligned columns; columns of numbers and those in `right` are right-aligned.

    Cells are formatted by `render_cell`. Rows and `header` have the same number of cells. Nothing is cut or folded.
    """
    lines = [*([header] if header else []), *rows]
    columns = [
        _aligned([render_cell(cell) for cell in column], at_right=index in right or _is_numeric(column[bool(header) :]))
        for index, column in enumerate(zip(*lines, strict=True))
    ]
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))


def render_pairs(pairs: Mapping[str, object]) -> str:
    """Names and values as two left-aligned columns."""
    return render_table([(name, render_cell(value)) for name, value in pairs.items()])


def render_cell(value: object) -> str:
    """A value as text: 1,234 and 1.2346; "" for None; control characters are escaped."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape_control_chars(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


def _is_numeric(column: Sequence[object]) -> bool:
    return bool(column) and all(isinstance(value, int | float | None) for value in column)


def _aligned(cells: Sequence[str], *, at_right: bool) -> list[str]:
    """`cells` padded to the width of the widest."""
    widths = [display_width(cell) for cell in cells]
    spaces = [" " * (max(widths) - width) for width in widths]
    return [space + cell if at_right else cell + space for cell, space in zip(cells, spaces, strict=True)]
