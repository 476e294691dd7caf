"""`gpt sample --novelty`: what each text copies from the training text, in a sentence or for JSON."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt_cli.cli.output import note
from gpt_cli.errors import escape_untrusted

if TYPE_CHECKING:
    from gpt_cli.run.checkpoint import Checkpoint
    from gpt_cli.scoring.novelty import Novelty

_SHOWN = 60  # characters of a span


class Copies:
    """The training text of a run, to compare texts with.

    Raises UserError, before anything is written, where that text is gone or has changed.
    """

    def __init__(self, saved: "Checkpoint") -> None:
        from gpt_cli.scoring.training_text import training_and_validation_text

        self._training, self._validation = training_and_validation_text(saved, note)
        self._longest = 0

    def of(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """For JSON, what each text copies."""
        from gpt_cli.scoring.novelty import measure_novelty

        return [found.to_json() for found in measure_novelty(texts, self._training)]

    def tell(self, text: str) -> None:
        """Say on stderr what `text` copies."""
        from gpt_cli.scoring.novelty import measure_novelty

        self._longest = max(self._longest, len(text))
        (found,) = measure_novelty([text], self._training)
        span = escape_untrusted(found.span[:_SHOWN]) + "..." * (len(found.span) > _SHOWN)
        note(f"copied: {_shares(found)}; longest {len(found.span):,}: '{span}'")

    def compare(self) -> None:
        """Say what as much of the text that the model was not trained on has in common with what it was."""
        from gpt_cli.scoring.novelty import measure_novelty

        passage = self._validation[: self._longest]
        (found,) = measure_novelty([passage], self._training)
        note(
            f"the first {len(passage):,} characters of the validation text, for comparison:\n"
            f"copied: {_shares(found)}; longest {len(found.span):,}"
        )


def _shares(found: "Novelty") -> str:
    return ", ".join(
        f"{'no' if share is None else f'{share:.1%} of the'} {n}-grams" for n, share in found.copied.items()
    )
