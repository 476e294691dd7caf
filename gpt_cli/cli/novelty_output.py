"""`gpt sample --novelty`: what each text copies from the training text, in two lines or for JSON."""

from typing import TYPE_CHECKING, Any

from gpt_cli.cli.output import note
from gpt_cli.terminal.escape import escape_control_chars

if TYPE_CHECKING:
    from gpt_cli.run.checkpoint import Checkpoint

_SHOWN = 40  # characters of a span


class NoveltyReport:
    """The training text of a run, to compare texts with.

    Raises UserError, before anything is written, where that text is gone or has changed.
    """

    def __init__(self, saved: "Checkpoint") -> None:
        from gpt_cli.evaluation.novelty import training_and_validation_text

        self._training, self._validation = training_and_validation_text(saved, note)
        self._longest = 0

    def measure(self, text: str) -> dict[str, Any]:
        """For JSON, what `text` copies."""
        from gpt_cli.evaluation.novelty import measure_novelty

        return measure_novelty(text, self._training)

    def print_text(self, text: str) -> None:
        """Print on stderr what `text` copies."""
        from gpt_cli.evaluation.novelty import GRAMS

        self._longest = max(self._longest, len(text))
        novelty = self.measure(text)
        span = escape_control_chars(novelty["span"])
        shares = {n: novelty[f"copied_{n}"] for n in GRAMS}
        parts = [f"{'no' if share is None else f'{share:.1%} of the'} {n}-grams" for n, share in shares.items()]
        note(f"copied: {', '.join(parts)}")
        note(f"longest: {novelty['longest']:,} characters, '{span[:_SHOWN]}{'...' * (len(span) > _SHOWN)}'")

    def print_validation(self) -> None:
        """Print, for comparison, what as much of the validation text has in common with the training text."""
        passage = self._validation[: self._longest]
        note(f"the first {len(passage):,} characters of the validation text, for comparison:")
        self.print_text(passage)
