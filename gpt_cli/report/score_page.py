"""`gpt score --html`: a text coloured by the bits of its tokens, as a self-contained HTML page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gpt_cli.errors import RequestError
from gpt_cli.evaluation.scored_text import ScoredLine, ScoredText, SurpriseKey
from gpt_cli.report.html import render_page, write_page
from gpt_cli.report.score_text import LEVELS, level, visible_text
from gpt_cli.terminal.words import plural

MAX_TOKENS = 1_000_000  # tokens of a page
MAX_INLINE_TOKENS = 20_000  # in the page as markup; for a longer text its script makes markup of visible parts
CHUNK = 1_000  # tokens that become markup together
_COLUMNS = 100  # characters of a row, about, to estimate the height of a part
WORST = 20  # lines in the list of the most surprising ones


@dataclass(frozen=True)
class Scored:
    """A scored text, and the run that scored it."""

    run: str
    step: int
    name: str
    """Name of the text."""
    text: ScoredText
    chosen: Sequence[int] | None
    """The indices of the most surprising lines, to show no others; None: the whole text is shown."""
    by: SurpriseKey
    """The measure of how surprising a line is."""
    context_length: int
    stride: int

    @cached_property
    def lines(self) -> list[ScoredLine]:
        """The lines shown, in this order."""
        return [self.text.line(i) for i in (range(len(self.text)) if self.chosen is None else self.chosen)]

    @cached_property
    def worst(self) -> list[ScoredLine]:
        """Beside the whole text the most surprising lines, the worst first; none of a short one."""
        is_long = self.chosen is None and len(self.text) > WORST
        return [self.text.line(i) for i in self.text.top_surprising(WORST, self.by)] if is_long else []

    @property
    def how(self) -> str:
        """A sentence on how it was scored."""
        if len(self.text.ids) <= self.context_length + 1:
            return "Each token is predicted from all before it."
        least = plural(self.context_length + 1 - self.stride, "token")
        return (
            f"Each token is predicted once, in windows of {self.context_length:,} tokens that move on by"
            f" {self.stride:,}: past the first from at least {least}."
        )


def write_scored(scored: Scored, output: Path) -> None:
    """Write the page. Raises RequestError for more than MAX_TOKENS."""
    tokens = sum(len(line.tokens) for line in scored.lines)
    if tokens > MAX_TOKENS:
        raise RequestError(
            f"the page would show {tokens:,} tokens, more than the {MAX_TOKENS:,} that it may",
            hint="show the most surprising lines alone with --worst 200",
        )
    write_page(output, render_scored(scored))


def render_scored(scored: Scored) -> str:
    chunks = None
    if sum(len(line.tokens) for line in scored.lines) > MAX_INLINE_TOKENS:
        chunks = list(_chunks(scored.lines))
    return render_page("score.html", "score.js", scored=scored, chunks=chunks, level=level, levels=LEVELS)


def _chunks(lines: Sequence[ScoredLine]) -> Iterator[dict[str, Any]]:
    """The lines in parts of about CHUNK tokens, at least a line each, as `score.js` takes them."""
    part: list[list[Any]] = []
    tokens = rows = 0
    for line in lines:
        part.append(_row(line))
        tokens += len(line.tokens)
        rows += 1 + len(line.text) // _COLUMNS
        if tokens >= CHUNK:
            yield {"rows": rows, "lines": part}
            part, tokens, rows = [], 0, 0
    if part:
        yield {"rows": rows, "lines": part}


def _row(line: ScoredLine) -> list[Any]:
    rate = line.bits_per_byte
    spans: list[Any] = []
    for span in line.spans:
        spans += [visible_text(span, keep="\t"), level(span.bits), None if span.bits is None else round(span.bits, 2)]
    return [line.number, round(line.bits, 1), None if rate is None else round(rate, 2), spans]
