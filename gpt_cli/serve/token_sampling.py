"""Samples a token with torch: logits processors and filters that the compiled kernel does not have.

Shapes: V vocabulary.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpt_cli.sampling.constraint import Matcher
from gpt_cli.sampling.filters import GumbelNoise
from gpt_cli.sampling.logits_processors import ProcessorFactory, choose_tokens

if TYPE_CHECKING:
    from gpt_cli.serve.text_sequence import TextSequence


class TokenSampler:
    """Samples the tokens of one sequence, with noise that depends on its seed and sample index only."""

    single_step = True

    def __init__(self, sequence: "TextSequence", vocab_size: int, device: torch.device) -> None:
        request = sequence.request
        assert isinstance(request.rules, ProcessorFactory)
        self._processors, matchers = request.rules.for_batch([sequence.opening], device)
        self.matcher: Matcher | None = matchers[0]
        self.return_logits = request.n_top is not None
        self._sampling = sampling = request.sampling
        self._noise = None if sampling.greedy else GumbelNoise(sampling.seed, [sequence.sample], vocab_size, device)

    @torch.inference_mode()
    def sample(self, logits: Tensor) -> int:
        """(1, V) -> the next token, which is accepted."""
        token = int(self.draw(logits)[0])
        self.accept(token)
        return token

    def draw(self, logits: Tensor) -> Tensor:
        """(1, V) -> (1,): the next token, without waiting for the device. The caller has to `accept` it."""
        noise = None if self._noise is None else self._noise.draw()
        return choose_tokens(logits, noise, self._sampling, self._processors)[0]

    def accept(self, token: int) -> None:
        """Update the logits processors with a sampled token."""
        for processor in self._processors:
            processor.accept([token])
