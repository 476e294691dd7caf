"""An inspection of a text, for the terminal."""

from collections.abc import Sequence
from textwrap import fill

from gpt_cli.analysis.counts import MAX_COUNTED, CharacterCount
from gpt_cli.analysis.duplicates import DuplicateCount
from gpt_cli.analysis.text_report import TextReport, advise
from gpt_cli.terminal.escape import shorten
from gpt_cli.terminal.table import render_cell, render_pairs, render_table
from gpt_cli.terminal.words import plural

_MAX_CHARACTERS = 20  # listed of each kind
_MAX_UNSEEN = 10  # characters listed that are only in the validation text
_MAX_EXAMPLE = 64  # columns of an example


def render_inspection(report: TextReport) -> str:
    """Statistics, unusual characters, duplicates, baselines and advice."""
    parts = [
        render_pairs(_pairs(report)),
        _characters("characters that occur fewer than 5 times", report.rare),
        _characters("characters that cannot be seen", report.invisible),
        _examples("most repeated lines", [(line.text, line.count) for line in report.repeated], "times"),
        _examples(
            "validation text found in the training text",
            [(p.text, p.characters) for p in report.leak.longest],
            "length",
        ),
        _baselines(report),
        "\n".join(fill(f"- {sentence}", 80, subsequent_indent="  ") for sentence in advise(report)),
    ]
    return "\n\n".join(part for part in parts if part)


def _pairs(report: TextReport) -> dict[str, object]:
    lines = report.lines
    median = f"{'at least ' * (lines.median_length == MAX_COUNTED)}{lines.median_length:,}"
    pairs: dict[str, object] = {
        "characters": f"{report.characters:,}, of which {report.val_characters:,} are held out for validation",
        "bytes": f"{report.bytes:,}, {report.bytes / report.characters:.2f} per character",
        "distinct": plural(report.distinct_characters, "character"),
        "documents": f"{report.documents:,}, {_share(report.duplicate_documents)} duplicates",
        "lines": f"{lines.lines:,}, {lines.blank:,} empty; median {median} characters, longest {lines.longest:,}",
        "repeated": f"{_share(report.duplicate_lines)} of the lines of 30 characters or more",
        "overlap": f"{_share(report.leak.passages)} of the validation passages of 32 characters,"
        f" {_share(report.leak.lines)} of its long lines"
        if report.leak.passages.compared
        else "none found, but no passage is varied enough to compare",
    }
    if report.unseen:
        listed = " ".join(f"'{character}'" for character in report.unseen[:_MAX_UNSEEN])
        more = ", for instance" if len(report.unseen) > _MAX_UNSEEN else ""
        pairs["new"] = f"{plural(len(report.unseen), 'character')} only in the validation text{more}: {listed}"
    if report.compared_share < 1:
        pairs["compared"] = f"1 passage in {1 / report.compared_share:,.0f}, chosen by its hash"
    return pairs


def _share(copies: DuplicateCount) -> str:
    return f"{copies.share:.1%}" if copies.copies and copies.share >= 0.0005 else f"{copies.copies:,}"


def _characters(title: str, characters: Sequence[CharacterCount]) -> str:
    if not characters:
        return ""
    rows = [(f"'{c.character}'", c.code_point, c.name.lower(), c.count) for c in characters[:_MAX_CHARACTERS]]
    more = len(characters) - len(rows)
    table = f"{title}\n" + render_table(rows, header=("", "", "", "times"))
    return f"{table}\n... and {more:,} more" if more else table


def _examples(title: str, rows: Sequence[tuple[str, int]], unit: str) -> str:
    cells = [(shorten(render_cell(text.strip()), _MAX_EXAMPLE), count) for text, count in rows]
    return render_table(cells, header=(title, unit)) if rows else ""


def _baselines(report: TextReport) -> str:
    rows = [(b.name, b.bits_per_character, b.bits_per_byte, b.nats_per_character) for b in report.baselines]
    table = render_table(rows, header=("baseline", "bits/character", "bits/byte", "nats/character"))
    if report.learned_on < report.train_characters or report.measured_on < report.val_characters:
        table += (
            f"\nlearned on a sample of {report.learned_on:,} of {report.train_characters:,} training characters,"
            f"\nmeasured on {report.measured_on:,} of {report.val_characters:,}"
        )
    return table
