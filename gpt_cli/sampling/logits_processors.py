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

from gpt_cli.cpu.decode.numpy_sampler import Masks
from gpt_cli.sampling.constraint import Matcher, compile_constraint, write_masks
from gpt_cli.sampling.logit_bias import LogitBias, MinNewTokens, token_bias
from gpt_cli.sampling.logprobs import LogprobRecorder
from gpt_cli.sampling.prompt import Opening
from gpt_cli.sampling.repetition import NoRepeatNgram, Penalties, PresenceFrequencyPenalty, RepetitionPenalty
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.tokenizer import Tokenizer


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


class ConstraintMask:
    """Excludes the tokens that cannot continue a match. The texts advance their matchers: see `TextStream`."""

    def __init__(self, matchers: Sequence[Matcher | None], masks: Masks, vocab_size: int) -> None:
        self._matchers, self._masks, self._vocab_size = matchers, masks, vocab_size

    def apply(self, logits: Tensor) -> Tensor:
        """(B, V) -> (B, V): -inf for tokens that may not follow."""
        write_masks(self._masks, self._matchers)
        bits = np.unpackbits(self._masks.astype("<u4").view(np.uint8), axis=1, bitorder="little")
        excluded = torch.from_numpy(bits[:, : self._vocab_size] == 0)
        return logits.masked_fill(excluded.to(logits.device), -math.inf)

    def accept(self, tokens: Sequence[int]) -> None:
        """Nothing: the text of each token has it first."""

    def reorder(self, rows: Sequence[int]) -> None:
        """Beam search has no constraints."""


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
        never = [token for token, value in self._bias.items() if value == -math.inf]
        self._constraint = compile_constraint(tokenizer, sampling, never)

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
        if self._constraint is not None:
            matchers[:] = [self._constraint.matcher() for _ in openings]
            processors.append(ConstraintMask(matchers, self._constraint.masks(len(openings)), self._vocab_size))
        if (n := self._sampling.no_repeat_ngram) is not None:
            processors.append(NoRepeatNgram(n, prompts))
        return BatchProcessors(processors, recorder, matchers)

    def admits(self, new_bytes: bytes) -> bool:
        """True if the first token of a text may be one that adds `new_bytes` to the prompt."""
        return self._constraint is None or self._constraint.admits(new_bytes)

    def process(self, tokens: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(V,) -> (V,): the logits after `tokens`, by all processors but the constraint, which `admits` has."""
        row = torch.from_numpy(logits)[None]
        for processor in self.for_batch([Opening(tokens)], row.device).processors:
            if not isinstance(processor, LogprobRecorder | ConstraintMask):
                row = processor.apply(row)
        processed: npt.NDArray[np.float32] = row[0].numpy()
        return processed
