"""Logits processors: their interface, and the processors that sampling parameters ask for.

Shapes: B sequences, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpt_cli.errors import RequestError
from gpt_cli.sampling.constraint import CompiledPattern, Matcher
from gpt_cli.sampling.constraint.constraint import Constraint
from gpt_cli.sampling.logit_bias import LogitBias, MinNewTokens, token_bias
from gpt_cli.sampling.logprobs import LogprobRecorder
from gpt_cli.sampling.prompt import Opening
from gpt_cli.sampling.repetition import NoRepeatNgram, Penalties, PresenceFrequencyPenalty, RepetitionPenalty
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.tokenizer import Tokenizer

_MAX_QUOTED = 50  # characters of a choice in an error


class LogitsProcessor(Protocol):
    """Changes the logits of B sequences before their next tokens are chosen."""

    def apply(self, logits: Tensor) -> Tensor:
        """(B, V) -> (B, V): a new tensor, or the same one unchanged."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Record the token appended to each of the B sequences."""

    def reorder(self, rows: Sequence[int]) -> None:
        """Sequence i becomes a copy of sequence `rows[i]`, in beam search."""


@dataclass(frozen=True)
class BatchProcessors:
    """The processors for one batch, in their order; the log-probabilities and matchers of its texts among them."""

    processors: list[LogitsProcessor]
    recorder: LogprobRecorder | None
    matchers: Sequence[Matcher | None]


class ProcessorFactory:
    """Creates the processors of some sampling parameters and a vocabulary, for any number of batches.

    The order is that of Transformers: bias, repetition penalty, then those that forbid tokens. OpenAI's `penalties`,
    which Transformers does not have, follow the repetition penalty, as in vLLM. Of those that forbid, the order matters
    to the n-grams alone, which do nothing where they would leave no token: they come last. Raises RequestError for
    settings that cannot be met.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams, penalties: Penalties | None = None) -> None:
        self._sampling, self._penalties = sampling, penalties
        self._vocab_size, self._ends = tokenizer.vocab_size, sorted(tokenizer.end_ids)
        self._bias = token_bias(tokenizer, sampling.logit_bias)
        self._pattern: CompiledPattern | None = None
        _refuse_long_choices(tokenizer, sampling)
        if sampling.pattern is not None:
            never = [token for token, value in self._bias.items() if value == -math.inf]
            self._pattern = CompiledPattern(
                tokenizer,
                sampling.pattern,
                sampling.max_new_tokens,
                never=never,
                asked="text of the choices" if sampling.choices else "text that matches the pattern",
            )

    def for_batch(self, openings: Sequence[Opening], device: torch.device) -> BatchProcessors:
        """The processors for texts that begin with these openings."""
        processors: list[LogitsProcessor] = []
        recorder, matchers = None, list[Matcher | None]([None] * len(openings))
        prompts, begun = [opening.tokens for opening in openings], [opening.new_tokens for opening in openings]
        if self._sampling.log_probs:
            recorder = LogprobRecorder(len(openings))
            recorder.log_probs = [opening.new_log_probs for opening in openings]
            processors.append(recorder)
        if self._bias:
            processors.append(LogitBias(self._bias, self._vocab_size, device))
        if (penalty := self._sampling.repetition_penalty) is not None:
            processors.append(RepetitionPenalty(penalty, prompts, self._vocab_size, device))
        if self._penalties:
            processors.append(PresenceFrequencyPenalty(self._penalties, begun, self._vocab_size, device))
        if self._ends and self._sampling.min_new_tokens:
            least = [self._sampling.min_new_tokens - len(tokens) for tokens in begun]
            processors.append(MinNewTokens(self._ends, least))
        if self._pattern is not None:
            constraint = Constraint(self._pattern, len(prompts))
            matchers[:] = constraint.matchers
            for matcher, opening in zip(constraint.matchers, openings, strict=True):
                matcher.begin(opening.new_bytes)
            processors.append(constraint)
        if (n := self._sampling.no_repeat_ngram) is not None:
            processors.append(NoRepeatNgram(n, prompts))
        return BatchProcessors(processors, recorder, matchers)

    def admits(self, new_bytes: bytes) -> bool:
        """True if the first token of a text may be one that adds `new_bytes` to the prompt."""
        return self._pattern is None or self._pattern.matcher().admits(new_bytes)

    def process(self, tokens: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(V,) -> (V,): the logits after `tokens`, by all processors but the pattern, which `admits` has."""
        row = torch.from_numpy(logits)[None]
        for processor in self.for_batch([Opening(tokens)], row.device).processors:
            if not isinstance(processor, LogprobRecorder | Constraint):
                row = processor.apply(row)
        processed: npt.NDArray[np.float32] = row[0].numpy()
        return processed


def _refuse_long_choices(tokenizer: Tokenizer, sampling: SamplingParams) -> None:
    """Raise RequestError for a choice of more than `max_new_tokens` tokens, where another is short enough."""
    lengths = [len(tokenizer.encode(choice)) for choice in sampling.choices]
    if lengths and min(lengths) <= sampling.max_new_tokens < max(lengths):
        longest = sampling.choices[lengths.index(max(lengths))]
        quoted = repr(longest) if len(longest) <= _MAX_QUOTED else f"{longest[:_MAX_QUOTED]!r}..."
        raise RequestError(
            f"the choice {quoted} has {max(lengths):,} tokens; max_new_tokens is {sampling.max_new_tokens:,}",
            hint=f"--max-new-tokens {max(lengths)}, or more",
        )
