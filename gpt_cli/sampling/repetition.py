"""Rules against repetition: penalties on tokens, and a ban on n-grams.

Shapes: B sequences, V vocabulary.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class RepetitionPenalty:
    """Divides the logit of each token in the sequence by `penalty` if it is positive, else multiplies it.

    Keskar et al. (2019), section 4.1, as Hugging Face extended it to negative logits. The prompt counts.
    """

    def __init__(self, penalty: float, prompts: Sequence[Sequence[int]], vocab_size: int, device: torch.device) -> None:
        self._penalty = penalty
        self._seen = torch.zeros(len(prompts), vocab_size, dtype=torch.bool, device=device)
        for row, prompt in zip(self._seen, prompts, strict=True):
            row[torch.tensor(prompt, dtype=torch.long, device=device)] = True

    def apply(self, logits: Tensor) -> Tensor:
        penalised = torch.where(logits > 0, logits / self._penalty, logits * self._penalty)
        return torch.where(self._seen, penalised, logits)

    def accept(self, tokens: Sequence[int]) -> None:
        self._seen.scatter_(1, torch.tensor(tokens, device=self._seen.device)[:, None], True)

    def reorder(self, rows: Sequence[int]) -> None:
        self._seen = self._seen[torch.tensor(rows, device=self._seen.device)]


@dataclass(frozen=True)
class Penalties:
    """OpenAI's presence and frequency penalties, which count the generated tokens and not the prompt."""

    presence: float = 0.0
    frequency: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.presence or self.frequency)


class PresenceFrequencyPenalty:
    """Subtracts `Penalties` from the logit of each token that was generated."""

    def __init__(
        self, penalties: Penalties, begun: Sequence[Sequence[int]], vocab_size: int, device: torch.device
    ) -> None:
        """`begun` are the tokens that each of the B sequences has generated already."""
        self._penalties = penalties
        self._counts = torch.zeros(len(begun), vocab_size, device=device)
        for row, tokens in zip(self._counts, begun, strict=True):
            for token in tokens:
                row[token] += 1

    def apply(self, logits: Tensor) -> Tensor:
        counts = self._counts.to(logits.dtype)
        penalty = self._penalties.presence + self._penalties.frequency * counts
        return logits - penalty.masked_fill(counts == 0, 0)

    def accept(self, tokens: Sequence[int]) -> None:
        rows = torch.arange(len(tokens), device=self._counts.device)
        self._counts[rows, torch.tensor(tokens, device=self._counts.device)] += 1

    def reorder(self, rows: Sequence[int]) -> None:
        self._counts = self._counts[torch.tensor(rows, device=self._counts.device)]


class NoRepeatNgram:
    """Forbids each token that would repeat an n-gram of the sequence, its prompt included.

    Paulus et al. (2017), section 2.5, for any n. Where that would forbid everything, it forbids nothing. N-grams are
    indexed by their prefix, so a lookup costs the same at any length.
    """

    def __init__(self, n: int, prompts: Sequence[Sequence[int]]) -> None:
        self._n = n
        self._follows: list[dict[tuple[int, ...], set[int]]] = [{} for _ in prompts]
        self._last: list[deque[int]] = [deque(maxlen=n) for _ in prompts]
        for row, prompt in enumerate(prompts):
            for token in prompt:
                self._note(row, token)

    def apply(self, logits: Tensor) -> Tensor:
        for row in range(len(logits)):
            if forbidden := self._follows[row].get(self._prefix(row)):
                rest = logits[row].index_fill(0, torch.tensor(sorted(forbidden), device=logits.device), -math.inf)
                if rest.max() > -math.inf:
                    logits = logits.index_copy(0, torch.tensor([row], device=logits.device), rest[None])
        return logits

    def accept(self, tokens: Sequence[int]) -> None:
        for row, token in enumerate(tokens):
            self._note(row, token)

    def reorder(self, rows: Sequence[int]) -> None:
        self._follows = [{prefix: set(next_) for prefix, next_ in self._follows[row].items()} for row in rows]
        self._last = [self._last[row].copy() for row in rows]

    def _prefix(self, row: int) -> tuple[int, ...]:
        last = tuple(self._last[row])
        return last[len(last) - self._n + 1 :] if len(last) >= self._n - 1 else (-1,)

    def _note(self, row: int, token: int) -> None:
        last = self._last[row]
        last.append(token)
        if len(last) == self._n:
            self._follows[row].setdefault(tuple(last)[:-1], set()).add(token)
