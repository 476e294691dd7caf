"""Samples a token with torch: logits processors, penalties and filters that the compiled kernel does not have.

Shapes: V vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpt_cli.sampling.constraint import Matcher
from gpt_cli.sampling.filters import next_token
from gpt_cli.sampling.logits_processors import LogitsProcessor
from gpt_cli.sampling.noise import GumbelNoise

if TYPE_CHECKING:
    from gpt_cli.serve.text_engine import SequenceRequest


@dataclass(frozen=True)
class Penalties:
    """OpenAI's presence and frequency penalties, which count the generated tokens and not the prompt."""

    presence: float = 0.0
    frequency: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.presence or self.frequency)


class PenaltyProcessor:
    """Logits processor that subtracts `Penalties`, for one sequence."""

    def __init__(self, penalties: Penalties) -> None:
        self._penalties, self._counts = penalties, Counter[int]()

    def apply(self, logits: Tensor) -> Tensor:
        if not self._counts:
            return logits
        ids = torch.tensor(list(self._counts), device=logits.device)
        counts = torch.tensor(list(self._counts.values()), dtype=logits.dtype, device=logits.device)
        penalty = self._penalties.presence + self._penalties.frequency * counts
        return logits.index_add(1, ids, -penalty[None])

    def accept(self, tokens: Sequence[int]) -> None:
        self._counts.update(tokens)

    def reorder(self, rows: Sequence[int]) -> None:
        """Does nothing: there is one sequence."""


class TokenSampler:
    """Samples the tokens of one sequence, with noise that depends on its seed and sample index only."""

    def __init__(self, request: "SequenceRequest", vocab_size: int, device: torch.device) -> None:
        assert request.processor_factory is not None
        batch = request.processor_factory.for_batch([request.prompt], device)
        self._processors: list[LogitsProcessor] = [*batch.processors]
        if request.penalties:
            self._processors.insert(1 if batch.processors else 0, PenaltyProcessor(request.penalties))
        self.matcher: Matcher | None = None if batch.matchers is None else batch.matchers[0]
        self._sampling = sampling = request.sampling
        self._noise = (
            None if sampling.greedy else GumbelNoise(sampling.seed, [request.sample_index], vocab_size, device)
        )

    @torch.inference_mode()
    def sample(self, logits: Tensor) -> int:
        """(1, V) -> the next token, which is accepted."""
        token = int(self.draw(logits)[0])
        self.accept(token)
        return token

    def draw(self, logits: Tensor) -> Tensor:
        """(1, V) -> (1,): the next token, without waiting for the device. The caller has to `accept` it."""
        noise = None if self._noise is None else self._noise.draw()
        for processor in self._processors:
            logits = processor.apply(logits)
        return next_token(logits, self._sampling, noise)

    def accept(self, token: int) -> None:
        """Update the logits processors with a sampled token."""
        for processor in self._processors:
            processor.accept([token])
