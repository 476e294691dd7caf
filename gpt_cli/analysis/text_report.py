"""The results of an inspection, and the advice that follows from them."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpt_cli.analysis.baselines import Baseline
from gpt_cli.analysis.counts import CharacterCount, LineStats
from gpt_cli.analysis.duplicates import CopiedPassage, DuplicateCount, RepeatedLine
from gpt_cli.terminal.words import plural

_SHORT = 200_000  # characters
_FEWEST_HELD_OUT = 100  # characters; what xz writes is a multiple of four bytes
_REPEATED = 0.005  # nats per character, which is shown as 0.00
_LARGE_ALPHABET = 512


@dataclass(frozen=True)
class Contamination:
    """Validation text that is also in the training text."""

    passages: DuplicateCount
    """Passages of 32 characters, starting at every character."""
    lines: DuplicateCount
    """Lines of at least 30 characters."""
    longest: tuple[CopiedPassage, ...]
    """The longest passages, if the whole text was compared."""


@dataclass(frozen=True)
class TextReport:
    """The inspection of a text. Counts are of the whole text unless a field is documented as that of a sample."""

    characters: int
    bytes: int
    distinct_characters: int
    documents: int
    lines: LineStats
    train_characters: int
    val_characters: int
    rare: tuple[CharacterCount, ...]
    invisible: tuple[CharacterCount, ...]
    unseen: tuple[str, ...]
    """Characters only in the validation text; empty if the training text was sampled."""
    duplicate_documents: DuplicateCount
    duplicate_lines: DuplicateCount
    """Lines of at least 30 characters."""
    repeated: tuple[RepeatedLine, ...]
    """The most frequent of them."""
    leak: Contamination
    baselines: tuple[Baseline, ...]
    learned_on: int
    """Characters of the training text that the baselines learned from."""
    measured_on: int
    """Characters of the validation text that they were measured on."""
    compared_share: float
    """Share of the passages that were looked up in the training text: 1 unless the text is large."""

    def baseline(self, name: str) -> Baseline:
        return next(baseline for baseline in self.baselines if baseline.name == name)


def advise(report: TextReport) -> list[str]:
    """Return a good loss to reach, then problems, the most severe first."""
    problems = [*_copy_problems(report), *_character_problems(report)]
    if not problems and report.distinct_characters > 1:
        problems = ["No problems found."]
    return [_good_loss(report), *problems]


def _good_loss(report: TextReport) -> str:
    best = min(report.baselines, key=lambda baseline: baseline.bits_per_character)
    if report.distinct_characters < 2:
        return "The text is one character throughout: there is nothing to learn from it."
    if report.measured_on < _FEWEST_HELD_OUT:
        return "The validation text is too short to predict a good loss."
    if best.nats_per_character < _REPEATED:
        return f"The validation text repeats the training text, as {best.name} shows: a loss near 0 means only that."
    return (
        f"A good loss is below {best.nats_per_character:.2f} nats per character"
        f" ({best.bits_per_byte:.2f} bits per byte), which {best.name} reaches; above"
        f" {report.baseline('bigram').nats_per_character:.2f} a model has learned no more than which character follows"
        " which."
    )


def _copy_problems(report: TextReport) -> Iterator[str]:
    if (leaked := report.leak.passages.share) >= 0.01:
        yield (
            f"{leaked:.1%} of the validation passages also occur in the training text: the validation loss will look"
            " better than the model is. Remove copies, or hold out other documents."
        )
    if copies := report.duplicate_documents.copies:
        are_copies = "is a copy" if copies == 1 else "are copies"
        yield f"{plural(copies, 'document')} {are_copies} of an earlier one: remove duplicates, which models memorise."
    if (repeated := report.duplicate_lines.share) >= 0.05:
        yield f"{repeated:.1%} of the long lines are copies of an earlier one. Remove them if they are not meant."


def _character_problems(report: TextReport) -> Iterator[str]:
    if any(character.code_point == "U+FFFD" for character in report.invisible):
        yield "The text contains U+FFFD, in place of bytes that could not be decoded: use the original file."
    elif report.invisible:
        yield "The text contains invisible characters, listed above: remove all but the joiners of scripts and emoji."
    lines = report.lines
    kinds = ((lines.crlf, "a carriage return and newline (CRLF)"), (lines.cr, "a carriage return alone (CR)"))
    if found := [f"{count:,} of {lines.ends:,} line ends are {kind}" for count, kind in kinds if count]:
        yield f"{', '.join(found)}: the model learns to write them. Save the file with line feeds (LF)."
    if report.distinct_characters > _LARGE_ALPHABET:
        yield f"{report.distinct_characters:,} distinct characters make a large vocabulary: bytes or BPE suit them."
    elif report.rare:
        occur = "occurs" if len(report.rare) == 1 else "occur"
        yield (
            f"{len(report.rare):,} of {report.distinct_characters:,} characters {occur} fewer than 5 times: too few to"
            " train a token. Replace them, or use bytes or BPE."
        )
    if report.characters < _SHORT:
        yield f"{report.characters:,} characters are few: a model memorises them. Use a small one and train.patience."
