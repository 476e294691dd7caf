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
from gpt_cli.tokenizer import Tokenizer

Normalise = Literal["none", "tokens", "bytes"]
_AT_ONCE = 32  # texts that a reader is given together, each with every label


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text. Lists are in the order of the labels."""

    log_probs: list[float]
    """Natural, of each label after the prompt."""
    scores: list[float]
    """The same over the length that was asked for: the highest wins, of equals the first."""
    probs: list[float]
    """The softmax of the scores: how sure the choice is."""

    @property
    def best(self) -> int:
        """The index of the label that was chosen."""
        return self.scores.index(max(self.scores))


@dataclass(frozen=True)
class Classifier:
    """A model that chooses among `labels` for a text: `prefix` + text + `suffix` + label + `after` is what it reads."""

    scorer: LogprobScorer
    tokenizer: Tokenizer
    labels: Sequence[str]
    prefix: str = ""
    suffix: str = ""
    after: str = ""
    normalise: Normalise = "none"

    def classify(self, texts: Sequence[str]) -> Iterator[Prediction]:
        """A verdict for each text.

        Raises UnknownCharacters, and RequestError for a label that does not fit into the context.
        """
        for start in range(0, len(texts), _AT_ONCE):
            prepared = [self._prepare(text) for text in texts[start : start + _AT_ONCE]]
            every = [tokens for _, choices in prepared for tokens in choices]
            firsts = [first for first, choices in prepared for _ in choices]
            found = iter(self.scorer.score(every, firsts))
            for first, choices in prepared:
                log_probs = [float(next(found).sum()) for _ in choices]
                yield self._predict(log_probs, [len(tokens) - first for tokens in choices])

    def _prepare(self, text: str) -> tuple[int, list[list[int]]]:
        """For each label what is read, and the index of the first token that is scored, the same for all labels.

        Of a prompt too long for the context the last tokens are read, as many with each label.
        """
        endings = [label + self.after for label in self.labels]
        first, choices = common_prefix(self.tokenizer, self.prefix + text + self.suffix, endings)
        context = self.scorer.context_length
        longest = max(map(len, choices))
        if longest - first > context:
            label = self.labels[max(range(len(choices)), key=lambda i: len(choices[i]))]
            raise RequestError(
                f"the label '{escape_control_chars(label[:50])}' has {longest - first:,} tokens;"
                f" the model's context is {context:,}"
            )
        left_out = max(0, longest - context - 1)
        return first - left_out, [tokens[left_out:] for tokens in choices]

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
    """The tokens of `prompt` with each ending, and how many of the first are the prompt's and the same in all.

    Prompt and ending are encoded as one text, as the model has learned to read it: where a token crosses the border
    between them (the space in `Answer: yes`), it is scored with the ending, in all of them.
    """
    known = encode_prompt(tokenizer, prompt)
    if prompt:
        choices = [tokenizer.encode(prompt + ending).tolist() for ending in endings]
        shared = 0
        for alike in zip(known, *choices, strict=False):
            if len(set(alike)) > 1:
                break
            shared += 1
        if shared:
            return shared, choices
    return len(known), [[*known, *tokenizer.encode(ending).tolist()] for ending in endings]
