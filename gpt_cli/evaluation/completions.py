"""Metrics of completions: exact match, chrF and BLEU, and a nearest-neighbour baseline.

chrF (Popović, 2015) and BLEU (Papineni et al., 2002) are those of sacrebleu (Post, 2018), so they are comparable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt_cli.errors import require_package

_NGRAM = 3  # characters


@dataclass(frozen=True)
class CompletionScores:
    """All in percent."""

    exact_match: float
    chrf: float
    bleu: float | None
    """None where no reference has four words in a row, and BLEU is undefined."""


def require_sacrebleu() -> Any:
    """The package sacrebleu. Raises UserError if it is not installed."""
    return require_package("sacrebleu", "chrF and BLEU need", "gpt-cli[metrics]")


def score_completions(written: Sequence[str], references: Sequence[str]) -> CompletionScores:
    """Metrics of the `written` texts against their `references`, at least one. Raises as `require_sacrebleu` does."""
    sacrebleu = require_sacrebleu()
    exact = sum(text == reference for text, reference in zip(written, references, strict=True))
    has_bleu = sacrebleu.corpus_bleu(list(references), [list(references)]).score > 0
    return CompletionScores(
        100 * exact / len(references),
        sacrebleu.corpus_chrf(list(written), [list(references)]).score,
        sacrebleu.corpus_bleu(list(written), [list(references)]).score if has_bleu else None,
    )


class NearestExample:
    """A baseline: the completion of the example with the most similar prompt, by the Dice coefficient of 3-grams."""

    def __init__(self, prompts: Sequence[str], completions: Sequence[str]) -> None:
        self._completions = completions
        self._sizes = np.array([len(_grams(prompt)) for prompt in prompts])
        by_gram: dict[str, list[int]] = {}
        for number, prompt in enumerate(prompts):
            for gram in _grams(prompt):
                by_gram.setdefault(gram, []).append(number)
        self._by_gram: dict[str, npt.NDArray[np.int64]] = {gram: np.array(numbers) for gram, numbers in by_gram.items()}

    def completion(self, prompt: str) -> str:
        """The completion of the nearest example; of equals the first."""
        shared = np.zeros(len(self._sizes), dtype=np.int64)
        grams = _grams(prompt)
        for gram in grams:
            if gram in self._by_gram:
                shared[self._by_gram[gram]] += 1
        return self._completions[int(np.argmax(2 * shared / (self._sizes + len(grams))))]


def _grams(text: str) -> set[str]:
    padded = f"\0{text}\0"
    return {padded[i : i + _NGRAM] for i in range(max(1, len(padded) - _NGRAM + 1))}
