"""Results of an inspection."""

from dataclasses import asdict, dataclass
from typing import Any

from gpt_cli.analysis.baselines import Baseline
from gpt_cli.analysis.characters import CharacterCount
from gpt_cli.analysis.lines import LineFacts


@dataclass(frozen=True)
class DuplicateCount:
    """Duplicates among the things compared."""

    compared: int
    """Things compared: all of them, or those whose hash is in the sample."""
    copies: int
    """Things that equal an earlier one."""

    @property
    def share(self) -> float:
        """Copies among what was compared; 0 where nothing was."""
        return self.copies / self.compared if self.compared else 0.0


@dataclass(frozen=True)
class RepeatedLine:
    text: str
    count: int


@dataclass(frozen=True)
class CopiedPassage:
    """A passage of the validation text that also stands in the training text."""

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
    """The longest passages, where the whole text was compared."""


@dataclass(frozen=True)
class TextReport:
    """A text, inspected. Counts are of the whole text; what was measured on a sample of it says so."""

    characters: int
    bytes: int
    distinct_characters: int
    documents: int
    lines: LineFacts
    train_characters: int
    val_characters: int
    rare: tuple[CharacterCount, ...]
    invisible: tuple[CharacterCount, ...]
    unseen: tuple[str, ...]
    """Characters of the validation text that the training text lacks, if it was read whole."""
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
