"""A token where the compiled kernel leaves the choice: rules, penalties and filters as torch has them.

Shapes: V vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt_cli.sampling.constraint import Matcher
from gpt_cli.sampling.filters import next_token
from gpt_cli.sampling.logits_processors import LogitsProcessor, ProcessorFactory
from gpt_cli.sampling.noise import GumbelNoise
from gpt_cli.sampling.sampling_params import SamplingParams


@dataclass(frozen=True)
class Penalties:
    """Presence and frequency penalties on the logits of tokens that the text holds, without its prompt."""

    presence: float = 0.0
    frequency: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.presence or self.frequency)


class PenaltyProcessor:
    """The rule of `Penalties`, for one text."""

    def __init__(self, penalties: Penalties) -> None:
        self._penalties, self._counts = penalties, Counter[int]()

    def apply(self, logits: Tensor) -> Tensor:
        if not self._counts:
            return logits
        ids = torch.tensor(list(self._counts), device=logits.device)
        times = torch.tensor(list(self._counts.values()), dtype=logits.dtype, device=logits.device)
        off = self._penalties.presence + self._penalties.frequency * times
        return logits.index_add(1, ids, -off[None])

    def accept(self, tokens: Sequence[int]) -> None:
        self._counts.update(tokens)

    def reorder(self, rows: Sequence[int]) -> None:
        """Nothing: there is one text."""


class TokenSampler:
    """The choice of one text's tokens; its noise is that of the sample, whoever is beside it."""

    def __init__(
        self,
        book: ProcessorFactory,
        sampling: SamplingParams,
        penalties: Penalties,
        prompt: Sequence[int],
        sample: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        batch = book.for_batch([prompt], device)
        self._rules: list[LogitsProcessor] = [*batch.processors]
        if penalties:
            self._rules.insert(1 if batch.processors else 0, PenaltyProcessor(penalties))
        self.matcher: Matcher | None = None if batch.matchers is None else batch.matchers[0]
        self._sampling = sampling
        self._noise = None if sampling.greedy else GumbelNoise(sampling.seed, [sample], vocab_size, device)

    @torch.inference_mode()
    def choose(self, logits: Tensor) -> int:
        """(1, V) -> the next token, of which the rules take note."""
        token = int(self.draw(logits)[0])
        self.accept(token)
        return token

    def draw(self, logits: Tensor) -> Tensor:
        """(1, V) -> (1,): the next token, which is to be accepted. It is not waited for."""
        drawn = None if self._noise is None else self._noise.draw()
        for rule in self._rules:
            logits = rule.apply(logits)
        return next_token(logits, self._sampling, drawn)

    def accept(self, token: int) -> None:
        """Have the rules take note of the token."""
        for rule in self._rules:
            rule.accept([token])
