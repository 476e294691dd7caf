"""Render the bits of each token of a text for a terminal, in colour or in columns."""

import math
from collections.abc import Iterable, Iterator, Sequence

from gpt_cli.evaluation.scored_text import ScoredLine, Span
from gpt_cli.terminal.escape import escape_control_chars

LEVELS = (1.0, 2.0, 4.0, 7.0, 10.0)
"""Thresholds, in bits, of the colours of spans."""
# (background, foreground) of each level, from the palette of 256 colours, yellow to dark red: both, to be readable on
# light and dark terminals. Spans of less than a bit are not coloured.
_COLOURS = (None, (230, 16), (222, 16), (215, 16), (203, 16), (160, 231))
_DIM, _END = "\x1b[2m", "\x1b[0m"
_HEADER = ("line", "bits", "bits/byte")


def level(bits: float | None) -> int:
    """0 (expected, or not predicted) to 5 (very surprising)."""
    return 0 if bits is None else sum(bits >= threshold for threshold in LEVELS)


def render_lines(lines: Iterable[ScoredLine], last: int, *, coloured: bool) -> Iterator[str]:
    """A row for each line, its spans in colours of their bits if `coloured`; `last` is the highest line number."""
    widths = (max(len(_HEADER[0]), len(str(last))), 8, len(_HEADER[2]))
    header = "  ".join(name.rjust(width) for name, width in zip(_HEADER, widths, strict=True))
    yield _dim(f"{header}  text") if coloured else f"{header}  text"
    for line in lines:
        rate = "" if line.bits_per_byte is None else f"{line.bits_per_byte:.2f}"
        cells = (str(line.number), f"{line.bits:.1f}" if rate else "", rate)
        gutter = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + "  "
        if coloured:
            yield _dim(gutter) + paint(line.spans)
        else:
            yield (gutter + escape_control_chars(line.text.removesuffix("\n"))).rstrip()


def render_tokens(lines: Iterable[ScoredLine], last: int) -> Iterator[str]:
    """A row for each token of some lines; `last` is the highest line number."""
    width = max(4, len(str(last)))
    yield f"{'line':>{width}}  {'id':>7}  {'bits':>7}  piece"
    for line in lines:
        for token, piece, log_prob in zip(line.tokens, line.pieces, line.log_probs, strict=True):
            bits = "" if log_prob is None else f"{abs(log_prob) / math.log(2):.3f}"
            yield f"{line.number:>{width}}  {token:>7}  {bits:>7}  '{escape_control_chars(piece)}'"


def paint(spans: Sequence[Span]) -> str:
    """Spans in the colour of their level."""
    parts: list[str] = []
    for span in spans:
        text = visible_text(span)
        colour = _COLOURS[level(span.bits)]
        parts.append(text if colour is None or not text else f"\x1b[38;5;{colour[1]};48;5;{colour[0]}m{text}{_END}")
    return "".join(parts)


def visible_text(span: Span, keep: str = "") -> str:
    """The text of a span, escaped except for `keep`; a newline at its end is shown as a sign if it is surprising."""
    text = escape_control_chars(span.text.removesuffix("\n"), keep)
    return f"{text}⏎" if span.text.endswith("\n") and level(span.bits) else text


def render_legend() -> str:
    names = [f"{threshold:g}+" for threshold in LEVELS]
    return "bits: " + " ".join(
        f"\x1b[38;5;{colour[1]};48;5;{colour[0]}m {name} {_END}"
        for name, colour in zip(names, _COLOURS[1:], strict=True)
        if colour is not None
    )


def _dim(text: str) -> str:
    return f"{_DIM}{text}{_END}"
