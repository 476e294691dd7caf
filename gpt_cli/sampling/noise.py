"""The randomness of sampling: a stream of Gumbel noise for each sample, independent of the others in its batch.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt_cli.shuffle import derive_seed

_BLOCK = 2**16  # numbers drawn at once for each sample
CPU_BLOCK = 2**12  # on a CPU values do not depend on it: small, for batches of short texts
_SMALLEST = 2.0**-25  # half of the spacing of uniform fp32 numbers


def block_size(device: torch.device) -> int:
    """The numbers that a generator draws at once; on a GPU their values depend on it."""
    return CPU_BLOCK if device.type == "cpu" else _BLOCK


class GumbelNoise:
    """Standard Gumbel noise, step by step; that of sample i is a function of (seed, i, V) and the kind of device.

    `samples` has the sample number of each of the B rows, so that the same sample of several prompts has the same
    noise; an int n stands for 0 ... n - 1.
    """

    def __init__(self, seed: int, samples: int | Sequence[int], vocab_size: int, device: torch.device) -> None:
        rows = list(range(samples) if isinstance(samples, int) else samples)
        numbers = sorted(set(rows))
        self._generators = [torch.Generator(device).manual_seed(derive_seed(seed, "sample", i)) for i in numbers]
        self._rows = None if rows == numbers else torch.tensor([numbers.index(i) for i in rows], device=device)
        # The block's shape must not depend on B, or the streams would.
        self._shape = (max(1, block_size(device) // vocab_size), vocab_size)
        self._block = torch.empty(0, len(numbers), vocab_size, device=device)
        self._used = 0

    def draw(self) -> Tensor:
        """(B, V): the noise of the next step."""
        if self._used == len(self._block):
            uniform = torch.stack([torch.rand(self._shape, generator=g, device=g.device) for g in self._generators], 1)
            # -log(1 - u) is exponential; u = 0 would become infinite noise, and choose even an impossible token.
            exponential = uniform.neg_().log1p_().neg_().clamp_min_(_SMALLEST)
            self._block, self._used = exponential.log_().neg_(), 0
        noise = self._block[self._used]
        self._used += 1
        return noise if self._rows is None else noise[self._rows]
