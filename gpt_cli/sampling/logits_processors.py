"""Logits processors: their interface, and those that sampling parameters ask for.

Shapes: B sequences, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpt_cli.cpu.decode.numpy_sampler import Masks
from gpt_cli.errors import RequestError
from gpt_cli.sampling.constraint import Matcher, compile_constraint, write_masks
from gpt_cli.sampling.filters import next_token
from gpt_cli.sampling.prompt import Opening
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.tokenizer import Tokenizer

_MAX_LISTED = 9  # pieces that an error spells out


class LogitsProcessor:
    """Changes the logits of B sequences before their next tokens are chosen."""

    def apply(self, logits: Tensor) -> Tensor:
        """(B, V) -> (B, V): a new tensor, or the same one unchanged."""
        raise NotImplementedError

    def accept(self, tokens: Sequence[int]) -> None:
        """Record the token appended to each of the B sequences."""

    def reorder(self, rows: Sequence[int]) -> None:
        """Sequence i becomes a copy of sequence `rows[i]`, in beam search."""


def choose_tokens(
    logits: Tensor, noise: Tensor | None, sampling: SamplingParams, processors: Sequence[LogitsProcessor]
) -> tuple[Tensor, ...]:
    """(B, V) logits and noise -> (B,) tokens, and with `sampling.log_probs` their (B,) log-probabilities.

    Those are the model's own, in nats: at temperature 1, before processors and filters.
    """
    processed = logits
    for processor in processors:
        processed = processor.apply(processed)
    tokens = next_token(processed, sampling, noise)
    if not sampling.log_probs:
        return (tokens,)
    return tokens, logits.float().log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0]


class LogitBias(LogitsProcessor):
    """Adds a number to the logits of some tokens; -inf forbids them."""

    def __init__(self, bias: Mapping[int, float], vocab_size: int, device: torch.device) -> None:
        self._bias = torch.zeros(vocab_size, device=device)
        for token, value in bias.items():
            self._bias[token] = value

    def apply(self, logits: Tensor) -> Tensor:
        return logits + self._bias


class _Counting(LogitsProcessor):
    """Counts the tokens of each of B `sequences`, for a `penalty` on those that occurred."""

    def __init__(self, penalty: Any, sequences: Sequence[Sequence[int]], vocab_size: int, device: torch.device) -> None:
        counts = [np.bincount(np.asarray(tokens, np.int64), minlength=vocab_size) for tokens in sequences]
        self._penalty, self._counts = penalty, torch.tensor(np.array(counts, np.float32), device=device)  # (B, V)

    def accept(self, tokens: Sequence[int]) -> None:
        self._counts.scatter_(1, torch.tensor(tokens, device=self._counts.device)[:, None], 1, reduce="add")

    def reorder(self, rows: Sequence[int]) -> None:
        self._counts = self._counts[torch.tensor(rows, device=self._counts.device)]


class RepetitionPenalty(_Counting):
    """Divides the logit of each token in the sequence by a number if it is positive, else multiplies it.

    Keskar et al. (2019), section 4.1, as Hugging Face extended it to negative logits. The prompt counts.
    """

    def apply(self, logits: Tensor) -> Tensor:
        penalised = torch.where(logits > 0, logits / self._penalty, logits * self._penalty)
        return torch.where(self._counts > 0, penalised, logits)


@dataclass(frozen=True)
class Penalties:
    """OpenAI's presence and frequency penalties, which count the generated tokens and not the prompt."""

    presence: float = 0.0
    frequency: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.presence or self.frequency)


class PresenceFrequencyPenalty(_Counting):
    """Subtracts `Penalties` from the logit of each token that was generated."""

    def apply(self, logits: Tensor) -> Tensor:
        counts, penalties = self._counts.to(logits.dtype), self._penalty
        penalty: Tensor = penalties.presence + penalties.frequency * counts
        return logits - penalty.masked_fill(counts == 0, 0)


class MinNewTokens(LogitsProcessor):
    """Forbids the `ends`, which end a text, in the first `n` tokens of each of B texts."""

    def __init__(self, ends: Sequence[int], n: Sequence[int]) -> None:
        self._ends, self._n = list(ends), list(n)

    def apply(self, logits: Tensor) -> Tensor:
        rows = [row for row, n in enumerate(self._n) if n > 0]
        if not rows:
            return logits
        logits = logits.clone()
        logits[torch.tensor(rows, device=logits.device)[:, None], self._ends] = -math.inf
        return logits

    def accept(self, tokens: Sequence[int]) -> None:
        self._n = [n - 1 for n in self._n]

    def reorder(self, rows: Sequence[int]) -> None:
        self._n = [self._n[row] for row in rows]


class ConstraintMask(LogitsProcessor):
    """Excludes the tokens that cannot continue a match. The texts advance their matchers: see `TextStream`."""

    def __init__(self, matchers: Sequence[Matcher | None], masks: Masks, vocab_size: int) -> None:
        self._matchers, self._masks, self._vocab_size = matchers, masks, vocab_size

    def apply(self, logits: Tensor) -> Tensor:
        write_masks(self._masks, self._matchers)
        bits = np.unpackbits(self._masks.astype("<u4").view(np.uint8), axis=1, bitorder="little")
        excluded = torch.from_numpy(bits[:, : self._vocab_size] == 0)
        return logits.masked_fill(excluded.to(logits.device), -math.inf)


class NoRepeatNgram(LogitsProcessor):
    """Forbids each token that would repeat an n-gram of the sequence, its prompt included.

    Paulus et al. (2017), section 2.5, for any n. Where that would forbid everything, it forbids nothing. N-grams are
    indexed by their prefix, so a lookup costs the same at any length.
    """

    def __init__(self, n: int, prompts: Sequence[Sequence[int]]) -> None:
        self._n = n
        self._latest: list[tuple[int, ...]] = [() for _ in prompts]  # the n - 1 tokens before the next one
        self._follows: list[dict[tuple[int, ...], frozenset[int]]] = [{} for _ in prompts]
        for row, prompt in enumerate(prompts):
            for token in prompt:
                self._note(row, token)

    def apply(self, logits: Tensor) -> Tensor:
        for row, (latest, follows) in enumerate(zip(self._latest, self._follows, strict=True)):
            if forbidden := follows.get(latest):
                rest = logits[row].index_fill(0, torch.tensor(sorted(forbidden), device=logits.device), -math.inf)
                if rest.max() > -math.inf:
                    logits = logits.index_copy(0, torch.tensor([row], device=logits.device), rest[None])
        return logits

    def accept(self, tokens: Sequence[int]) -> None:
        for row, token in enumerate(tokens):
            self._note(row, token)

    def reorder(self, rows: Sequence[int]) -> None:
        self._latest = [self._latest[row] for row in rows]
        self._follows = [dict(self._follows[row]) for row in rows]

    def _note(self, row: int, token: int) -> None:
        latest, follows = self._latest[row], self._follows[row]
        if len(latest) == self._n - 1:
            follows[latest] = follows.get(latest, frozenset()) | {token}
        self._latest[row] = (*latest, token)[1 - self._n :] if self._n > 1 else ()


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

    def for_batch(
        self, openings: Sequence[Opening], device: torch.device
    ) -> tuple[list[LogitsProcessor], Sequence[Matcher | None]]:
        """The processors for texts that begin with these openings, in their order, and the texts' matchers."""
        sampling, vocab_size, processors = self._sampling, self._vocab_size, list[LogitsProcessor]()
        matchers: Sequence[Matcher | None] = [None] * len(openings)
        prompts, begun = [opening.tokens for opening in openings], [opening.new_tokens for opening in openings]
        if self._bias:
            processors.append(LogitBias(self._bias, vocab_size, device))
        if sampling.repetition_penalty is not None:
            processors.append(RepetitionPenalty(sampling.repetition_penalty, prompts, vocab_size, device))
        if self._penalties:
            processors.append(PresenceFrequencyPenalty(self._penalties, begun, vocab_size, device))
        if self._ends and sampling.min_new_tokens:
            processors.append(MinNewTokens(self._ends, [sampling.min_new_tokens - len(tokens) for tokens in begun]))
        if self._constraint is not None:
            matchers = [self._constraint.matcher() for _ in openings]
            processors.append(ConstraintMask(matchers, self._constraint.masks(len(openings)), vocab_size))
        if sampling.no_repeat_ngram is not None:
            processors.append(NoRepeatNgram(sampling.no_repeat_ngram, prompts))
        return processors, matchers

    def admits(self, new_bytes: bytes) -> bool:
        """True if the first token of a text may be one that adds `new_bytes` to the prompt."""
        return self._constraint is None or self._constraint.admits(new_bytes)

    def process(self, tokens: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(V,) -> (V,): the logits after `tokens`, by all processors but the constraint, which `admits` has."""
        row = torch.from_numpy(logits)[None]
        for processor in self.for_batch([Opening(tokens)], row.device)[0]:
            row = row if isinstance(processor, ConstraintMask) else processor.apply(row)
        processed: npt.NDArray[np.float32] = row[0].numpy()
        return processed


def token_bias(tokenizer: Tokenizer, entries: Sequence[tuple[str | int, float]]) -> dict[int, float]:
    """Logit bias by id: `entries`, and -inf for `<unk>`, which is never sampled.

    A text stands for the one token that it encodes to. Raises RequestError if it encodes to more, for an id outside the
    vocabulary, and if no token is left.
    """
    bias: dict[int, float] = {}
    for name, value in entries:
        if (token := _token_id(tokenizer, name)) in bias:
            raise RequestError(f"logit_bias: token {token} is given twice", hint="give each token one number")
        bias[token] = value
    if tokenizer.unk_id is not None:
        bias[tokenizer.unk_id] = -math.inf
    banned = {token for token, value in bias.items() if value == -math.inf} | tokenizer.end_ids
    if all(token in banned for token in range(tokenizer.vocab_size)):
        raise RequestError("logit_bias leaves no token that may be written")
    return bias


def _token_id(tokenizer: Tokenizer, name: str | int) -> int:
    if isinstance(name, int):
        if 0 <= name < tokenizer.vocab_size:
            return name
        raise RequestError(f"logit_bias: there is no id {name} in a vocabulary of {tokenizer.vocab_size:,}")
    shown = f"logit_bias: '{escape_control_chars(name[:50])}'"
    if missing := "".join(tokenizer.unknown_characters(name))[:50]:
        raise RequestError(f"{shown} has characters that the vocabulary lacks: {escape_control_chars(missing)}")
    ids = [int(token) for token in tokenizer.encode(name, allow_special=True)]
    if len(ids) != 1:
        pieces = " ".join(f"'{escape_control_chars(tokenizer.decode([token]))}'" for token in ids[:_MAX_LISTED])
        hint = "gpt tokenize --text shows the tokens of a text"
        raise RequestError(f"{shown} is {len(ids)} tokens, not one: {pieces}", hint=hint)
    return ids[0]
