"""Zero-shot classification: the label that most likely follows a text.

The score of a label is log p(label | prompt), as in Brown et al. (2020), section 2.4.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gpt_cli.errors import RequestError
from gpt_cli.evaluation.logprob_scorer import LogprobScorer
from gpt_cli.sampling.prompt import encode_prompt
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.plural import plural
from gpt_cli.tokenizer import Tokenizer

Normalise = Literal["none", "tokens", "bytes"]
_BATCH_SIZE = 32  # texts that are scored together, each with every label


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text. Lists are in the order of the labels."""

    log_probs: list[float]
    """Natural log-probability of each label after the prompt."""
    scores: list[float]
    """log_probs divided by the label's length, if `normalise` asks for it. The highest wins, of equals the first."""
    probs: list[float]
    """Softmax of the scores."""

    @property
    def best(self) -> int:
        """Index of the label with the highest score."""
        return self.scores.index(max(self.scores))


@dataclass(frozen=True)
class Classifier:
    """Chooses among `labels` for a text; the model reads `prefix` + text + `suffix` + label + `after`."""

    scorer: LogprobScorer
    tokenizer: Tokenizer
    labels: Sequence[str]
    prefix: str = ""
    suffix: str = ""
    after: str = ""
    normalise: Normalise = "none"

    def classify(self, texts: Sequence[str]) -> Iterator[Prediction]:
        """A prediction for each text.

        Raises UnknownCharacters, and RequestError for a label that does not fit into the context.
        """
        for start in range(0, len(texts), _BATCH_SIZE):
            prepared = [self._prepare(text) for text in texts[start : start + _BATCH_SIZE]]
            sequences = [tokens for _, choices in prepared for tokens in choices]
            score_from = [first for first, choices in prepared for _ in choices]
            token_log_probs = iter(self.scorer.score(sequences, score_from))
            for first, choices in prepared:
                log_probs = [float(next(token_log_probs).sum()) for _ in choices]
                yield self._predict(log_probs, [len(tokens) - first for tokens in choices])

    def _prepare(self, text: str) -> tuple[int, list[list[int]]]:
        """(index of the first token to score, ids of the prompt with each label).

        A prompt that is too long for the context is cut at its start, by the same number of tokens for all labels.
        """
        endings = [label + self.after for label in self.labels]
        first, choices = common_prefix(self.tokenizer, self.prefix + text + self.suffix, endings)
        context = self.scorer.context_length
        longest = max(map(len, choices))
        if longest - first > context:
            label = self.labels[max(range(len(choices)), key=lambda i: len(choices[i]))]
            raise RequestError(
                f"the label '{escape_control_chars(label[:50])}' has {plural(longest - first, 'token')};"
                f" the model's context is {context:,}"
            )
        dropped = max(0, longest - context - 1)
        return first - dropped, [tokens[dropped:] for tokens in choices]

    def _predict(self, log_probs: list[float], n_tokens: list[int]) -> Prediction:
        lengths: Sequence[float] = [1.0] * len(self.labels)
        if self.normalise == "tokens":
            lengths = n_tokens
        elif self.normalise == "bytes":
            lengths = [len((label + self.after).encode()) for label in self.labels]
        scores = [value / length for value, length in zip(log_probs, lengths, strict=True)]
        powers = [math.exp(score - max(scores)) for score in scores]
        return Prediction(log_probs, scores, [power / sum(powers) for power in powers])


def common_prefix(tokenizer: Tokenizer, prompt: str, endings: Sequence[str]) -> tuple[int, list[list[int]]]:
    """(number of prompt tokens that all sequences share, ids of `prompt` with each ending).

    Prompt and ending are encoded as one text, as in training: a token that spans both (the space in `Answer: yes`) is
    scored with the ending.
    """
    prompt_ids = encode_prompt(tokenizer, prompt)
    if prompt:
        choices = [tokenizer.encode(prompt + ending).tolist() for ending in endings]
        shared = 0
        for ids in zip(prompt_ids, *choices, strict=False):
            if len(set(ids)) > 1:
                break
            shared += 1
        if shared:
            return shared, choices
    return len(prompt_ids), [[*prompt_ids, *tokenizer.encode(ending).tolist()] for ending in endings]
