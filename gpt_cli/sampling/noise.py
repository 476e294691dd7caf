"""The randomness of sampling: a stream of Gumbel noise for each sample, whatever runs beside it.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt_cli.order import derive_seed

_BLOCK = 2**16  # numbers drawn at once for each sample
_SMALLEST = 2.0**-25  # half of what separates two uniform fp32 numbers


class GumbelNoise:
    """Standard Gumbel noise, step by step; that of sample i is a function of (seed, i, V) and the kind of device.

    `samples` says which sample each of the B rows is, so that the same sample of several prompts has the same noise;
    a number n stands for 0 ... n - 1.
    """

    def __init__(self, seed: int, samples: int | Sequence[int], vocab_size: int, device: torch.device) -> None:
        rows = list(range(samples) if isinstance(samples, int) else samples)
        numbers = sorted(set(rows))
        self._generators = [torch.Generator(device).manual_seed(derive_seed(seed, "sample", i)) for i in numbers]
        self._rows = None if rows == numbers else torch.tensor([numbers.index(i) for i in rows], device=device)
        # The block's shape must not depend on B, or the streams would.
        self._shape = (max(1, _BLOCK // vocab_size), vocab_size)
        self._block = torch.empty(0, len(numbers), vocab_size, device=device)
        self._used = 0

    def draw(self) -> Tensor:
        """(B, V): the noise of the next step."""
        if self._used == len(self._block):
            self._block = torch.stack([self._draw_block(g) for g in self._generators], dim=1)
            self._used = 0
        self._used += 1
        noise = self._block[self._used - 1]
        return noise if self._rows is None else noise[self._rows]

    def _draw_block(self, generator: torch.Generator) -> Tensor:
        uniform = torch.rand(self._shape, generator=generator, device=generator.device)
        # -log(1 - u) is exponential; a u of 0 would become infinite noise, and choose even a hopeless token.
        exponential = uniform.neg_().log1p_().neg_().clamp_min_(_SMALLEST)
        return exponential.log_().neg_()
