"""Results of an inspection."""

from dataclasses import dataclass

from gpt_cli.analysis.baselines import Baseline
from gpt_cli.analysis.characters import CharacterCount
from gpt_cli.analysis.lines import LineStats


@dataclass(frozen=True)
class DuplicateCount:
    """Number of duplicates among the items compared."""

    compared: int
    """All items, or those whose hash is in the sample."""
    copies: int
    """Items that equal an earlier one."""

    @property
    def share(self) -> float:
        """Share of copies; 0 if nothing was compared."""
        return self.copies / self.compared if self.compared else 0.0


@dataclass(frozen=True)
class RepeatedLine:
    text: str
    count: int


@dataclass(frozen=True)
class CopiedPassage:
    """A passage of the validation text that is also in the training text."""

    text: str
    characters: int


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
    """The inspection of a text. Counts are of the whole text unless a field says that they are of a sample."""

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
