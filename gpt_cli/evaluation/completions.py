"""Measure what a model writes after prompts: exact match, chrF and BLEU, and a nearest-neighbour baseline.

chrF (Popović, 2015) and BLEU (Papineni et al., 2002) are those of sacrebleu (Post, 2018), so they are comparable.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.examples import Examples
from gpt_cli.errors import UserError, require_package
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.run_corpus import load_run_corpus

_NGRAM = 3  # characters
Write = Callable[[Sequence[list[int]]], Sequence[str]]
"""Returns the completion that a model writes after each prompt."""


@dataclass(frozen=True)
class Completion:
    """The last completion of an example, and what was `written` in its place."""

    prompt: str
    completion: str
    written: str


def measure_completions(
    saved: Checkpoint,
    split: Literal["val", "test"],
    write: Write,
    *,
    others: Examples | None = None,
    limit: int | None = None,
    baselines: bool = False,
) -> tuple[dict[str, Any], list[Completion]]:
    """Have the last completion of the examples of a split, or of `others`, written, and measure them.

    `limit` is how many are measured, from the first; None: all that fit into the context. `baselines` adds copying the
    prompt and the completion of the nearest training prompt. Raises UserError if no example fits.
    """
    splits: dict[Any, Examples] = {}
    if others is None or baselines:  # whatever there is to note about it, the evaluation of the loss has noted
        splits = load_run_corpus(saved, note=lambda _: None, with_test=split == "test").examples
    examples = splits[split] if others is None else others
    context = saved.config.model.context_length
    turns = [examples.last_turn(number) for number in range(len(examples))]
    turns = [(prompt, completion) for prompt, completion in turns if len(prompt) + len(completion) - 1 <= context][
        :limit
    ]
    if not turns:
        raise UserError(f"no example fits whole into model.context_length {context}, so no completion can be written")
    prompts, references = _texts(saved, turns, examples.end_text)
    written = write([prompt for prompt, _ in turns])
    figures = {"examples": len(turns), **asdict(score_completions(written, references))}
    if baselines:
        train = splits["train"]
        known = [train.last_turn(number) for number in range(len(train))]
        nearest = NearestExample(*_texts(saved, known, train.end_text))
        for name, guesses in {"copy": prompts, "nearest": [nearest.completion(prompt) for prompt in prompts]}.items():
            scores = asdict(score_completions(guesses, references))
            figures |= {f"{name}_{key}": value for key, value in scores.items()}
    return figures, list(map(Completion, prompts, references, written))


def _texts(saved: Checkpoint, turns: Sequence[tuple[list[int], list[int]]], end: str) -> tuple[list[str], list[str]]:
    """The prompts, of pairs without the template, and the completions of `turns`."""
    decode, data = saved.tokenizer.decode, saved.config.data
    prompt_end = data.prompt_end if data.format == "pairs" else ""
    prompts = [decode(prompt).removesuffix(prompt_end) for prompt, _ in turns]
    return prompts, [decode(completion).removesuffix(end) for _, completion in turns]


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
