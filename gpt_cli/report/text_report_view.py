"""An inspection of a text, for the terminal."""

from collections.abc import Sequence
from textwrap import fill

from gpt_cli.analysis.advice import advise
from gpt_cli.analysis.characters import CharacterCount
from gpt_cli.analysis.results import DuplicateCount, TextReport
from gpt_cli.terminal.table import render_cell, render_pairs, render_table, terminal_columns, truncate

_CHARACTERS = 20  # listed of each kind
_NEW = 10  # characters of the validation text that the training text lacks
_LONGEST = 64  # columns of an example


def render_inspection(found: TextReport) -> str:
    """Facts, what is odd, what is there twice, baselines, and what to make of it."""
    parts = [
        render_pairs(_facts(found)),
        _characters("characters that occur fewer than 5 times", found.rare),
        _characters("characters that cannot be seen", found.invisible),
        _examples("most repeated lines", [(line.text, line.count) for line in found.repeated], "times"),
        _examples(
            "validation text found in the training text", [(p.text, p.characters) for p in found.leak.longest], "length"
        ),
        _baselines(found),
        "\n".join(fill(f"- {sentence}", terminal_columns(), subsequent_indent="  ") for sentence in advise(found)),
    ]
    return "\n\n".join(part for part in parts if part)


def _facts(found: TextReport) -> dict[str, object]:
    lines = found.lines
    facts: dict[str, object] = {
        "characters": f"{found.characters:,}, of which {found.val_characters:,} are held out for validation",
        "bytes": f"{found.bytes:,}, {found.bytes / found.characters:.2f} per character",
        "distinct": _characters_in(found.distinct_characters),
        "documents": f"{found.documents:,}, {_share(found.duplicate_documents)} duplicates",
        "lines": f"{lines.lines:,}, {lines.blank:,} empty; median {lines.median_length:,} characters,"
        f" longest {lines.longest:,}",
        "repeated": f"{_share(found.duplicate_lines)} of the lines of 30 characters or more",
        "overlap": f"{_share(found.leak.passages)} of the validation passages of 32 characters,"
        f" {_share(found.leak.lines)} of its long lines"
        if found.leak.passages.compared
        else "none found, but no passage is varied enough to compare",
    }
    if found.unseen:
        listed = " ".join(f"'{character}'" for character in found.unseen[:_NEW])
        more = ", for instance" if len(found.unseen) > _NEW else ""
        facts["new"] = f"{_characters_in(len(found.unseen))} only in the validation text{more}: {listed}"
    if found.compared_share < 1:
        facts["compared"] = f"1 passage in {1 / found.compared_share:,.0f}, chosen by its hash"
    return facts


def _characters_in(count: int) -> str:
    return "1 character" if count == 1 else f"{count:,} characters"


def _share(copies: DuplicateCount) -> str:
    return f"{copies.share:.1%}" if copies.copies and copies.share >= 0.0005 else f"{copies.copies:,}"


def _characters(title: str, characters: Sequence[CharacterCount]) -> str:
    if not characters:
        return ""
    rows = [(f"'{c.character}'", c.code_point, c.name.lower(), c.count) for c in characters[:_CHARACTERS]]
    left = len(characters) - len(rows)
    table = f"{title}\n" + render_table(rows, header=("", "", "", "times"))
    return f"{table}\n... and {left:,} more" if left else table


def _examples(title: str, rows: Sequence[tuple[str, int]], unit: str) -> str:
    shown = [(truncate(render_cell(text.strip()), _LONGEST), count) for text, count in rows]
    return render_table(shown, header=(title, unit)) if rows else ""


def _baselines(found: TextReport) -> str:
    rows = [(b.name, b.bits_per_character, b.bits_per_byte, b.nats_per_character) for b in found.baselines]
    table = render_table(rows, header=("baseline", "bits/character", "bits/byte", "nats/character"))
    if found.learned_on < found.train_characters or found.measured_on < found.val_characters:
        table += (
            f"\nlearned on a sample of {found.learned_on:,} of {found.train_characters:,} training characters,"
            f"\nmeasured on {found.measured_on:,} of {found.val_characters:,}"
        )
    return table
