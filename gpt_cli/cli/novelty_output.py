"""`gpt sample --novelty`: what each text copies from the training text, in a sentence or for JSON."""

from collections.abc import Sequence
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
        from gpt_cli.evaluation.training_text import training_and_validation_text

        self._training, self._validation = training_and_validation_text(saved, note)
        self._longest = 0

    def to_json(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """For JSON, what each text copies."""
        from gpt_cli.evaluation.novelty import measure_novelty

        return [novelty.to_json() for novelty in measure_novelty(texts, self._training)]

    def print_text(self, text: str) -> None:
        """Print on stderr what `text` copies."""
        self._longest = max(self._longest, len(text))
        self._print(text)

    def print_validation(self) -> None:
        """Print, for comparison, what as much of the validation text has in common with the training text."""
        passage = self._validation[: self._longest]
        note(f"the first {len(passage):,} characters of the validation text, for comparison:")
        self._print(passage)

    def _print(self, text: str) -> None:
        from gpt_cli.evaluation.novelty import measure_novelty

        (novelty,) = measure_novelty([text], self._training)
        span = escape_control_chars(novelty.span)
        shares = [
            f"{'no' if share is None else f'{share:.1%} of the'} {n}-grams" for n, share in novelty.copied.items()
        ]
        note(f"copied: {', '.join(shares)}")
        note(f"longest: {len(novelty.span):,} characters, '{span[:_SHOWN]}{'...' * (len(span) > _SHOWN)}'")
