"""Figures of completions: the same as what was to be written, or near to it, beside what needs no model.

chrF (Popović, 2015) and BLEU (Papineni et al., 2002) are those of sacrebleu (Post, 2018), so that figures compare.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt_cli.errors import UserError

_GRAM = 3  # characters by which a prompt is near to another


@dataclass(frozen=True)
class CompletionScores:
    """All in percent."""

    exact_match: float
    chrf: float
    bleu: float


def require_sacrebleu() -> Any:
    """The package. Raises UserError where it is absent."""
    try:
        return importlib.import_module("sacrebleu")
    except ImportError as error:
        raise UserError(
            "chrF and BLEU need the package sacrebleu",
            hint="pip install 'gpt-cli[metrics]', or leave them out: --no-completions",
        ) from error


def score_completions(written: Sequence[str], references: Sequence[str]) -> CompletionScores:
    """Figures of the `written` texts beside their `references`, at least one. Raises as `require_sacrebleu` does."""
    sacrebleu = require_sacrebleu()
    exact = sum(one == other for one, other in zip(written, references, strict=True))
    return CompletionScores(
        100 * exact / len(references),
        sacrebleu.corpus_chrf(list(written), [list(references)]).score,
        sacrebleu.corpus_bleu(list(written), [list(references)]).score,
    )


class NearestExample:
    """The completion of the example whose prompt shares most runs of three characters with another prompt (Dice)."""

    def __init__(self, prompts: Sequence[str], completions: Sequence[str]) -> None:
        self._completions = completions
        self._sizes = np.array([len(_grams(prompt)) for prompt in prompts])
        places: dict[str, list[int]] = {}
        for number, prompt in enumerate(prompts):
            for gram in _grams(prompt):
                places.setdefault(gram, []).append(number)
        self._places: dict[str, npt.NDArray[np.int64]] = {gram: np.array(found) for gram, found in places.items()}

    def completion(self, prompt: str) -> str:
        """Of equally near ones the first."""
        shared = np.zeros(len(self._sizes), dtype=np.int64)
        grams = _grams(prompt)
        for gram in grams:
            if gram in self._places:
                shared[self._places[gram]] += 1
        return self._completions[int(np.argmax(2 * shared / (self._sizes + len(grams))))]


def _grams(text: str) -> set[str]:
    padded = f"\0{text}\0"
    return {padded[i : i + _GRAM] for i in range(max(1, len(padded) - _GRAM + 1))}
