"""`gpt score --html`: a text coloured by what a model made of it, as a page that needs nothing but a browser."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt_cli.errors import RequestError
from gpt_cli.report.html import render_page, write_page
from gpt_cli.report.score_text import LEVELS, level
from gpt_cli.scoring.scored_text import ScoredLine, ScoredText

_MOST = 300_000  # tokens of a page: 14 MB of markup, about what a browser shows without trouble
WORST = 20  # lines in the list of the most surprising ones


@dataclass(frozen=True)
class Scored:
    """A text that was scored, and by which run."""

    run: str
    step: int
    name: str
    """Of the text."""
    text: ScoredText
    lines: Sequence[ScoredLine]
    """Those that are shown, in this order."""
    worst: Sequence[ScoredLine]
    """The most surprising ones, the worst first."""
    how: str
    """How it was read, in a sentence."""


def write_scored(scored: Scored, output: Path) -> None:
    """Write the page. Raises RequestError for more tokens than a browser shows without trouble."""
    tokens = sum(len(line.tokens) for line in scored.lines)
    if tokens > _MOST:
        raise RequestError(
            f"the page would show {tokens:,} tokens, more than the {_MOST:,} that it may",
            hint="show the most surprising lines alone with --worst 200",
        )
    write_page(output, render_scored(scored))


def render_scored(scored: Scored) -> str:
    """The page as HTML."""
    return render_page("score.html", None, scored=scored, level=level, levels=LEVELS)
