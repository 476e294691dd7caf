"""From logits to a token without torch: gpt_cli/sampling/filters.py over again, for one text.

Shapes: V vocabulary.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.cpu.decode.weights import Array

_WHOLE = 2**40
_SMALLEST = np.float32(2.0**-25)


@dataclass(frozen=True)
class TokenChoice:
    """Sampling parameters of the kernel. None is off; the numbers are those of `SamplingParams`."""

    temperature: float
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    banned_tokens: tuple[int, ...] = ()
    end_tokens: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is always taken."""
        return self.temperature < 1e-6


Masks = npt.NDArray[np.uint32]
"""(..., W = ceil(V / 32)): bit t % 32 of word t // 32 is set if token t may be sampled."""


def apply_mask(logits: Array, mask: Masks) -> Array:
    """(V,), (W,) -> (V,): -inf for tokens that may not be sampled."""
    allowed = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")[: len(logits)]
    return np.where(allowed, logits, np.float32(-np.inf))


def sample_token(logits: Array, choice: TokenChoice, noise: Array | None) -> int:
    """(V,), (V,) Gumbel noise -> the token with the largest sum of both, among those that the filters leave."""
    if noise is None:
        logits = logits.copy()
        logits[list(choice.banned_tokens)] = -np.inf
        return int(logits.argmax())
    return int((filtered(logits, choice) + noise).argmax())


def filtered(logits: Array, choice: TokenChoice) -> Array:
    """(V,) -> (V,): over the temperature, which is not 0, and -inf for what the filters leave out."""
    logits = logits.copy()
    logits[list(choice.banned_tokens)] = -np.inf
    logits /= np.float32(choice.temperature)
    if choice.top_k is not None:
        k = min(choice.top_k, len(logits))
        logits[logits < np.partition(logits, -k)[-k]] = -np.inf
    if choice.top_p is not None and choice.top_p < 1:
        descending = np.sort(logits)[::-1]
        powers = np.exp(descending - descending[0])
        probability = (powers / powers.sum() * np.float32(_WHOLE)).astype(np.int64)
        likelier = probability.cumsum() - probability
        logits[logits < descending[int((likelier < choice.top_p * _WHOLE).sum()) - 1]] = -np.inf
    if choice.min_p is not None:
        logits[logits < logits.max() + np.float32(math.log(choice.min_p))] = -np.inf
    return logits


def gumbel_noise(twister: np.random.RandomState, vocab_size: int) -> Array:
    """(V,) standard Gumbel noise. Torch's generator on a CPU is this Mersenne Twister, 24 bits of each word."""
    bits = twister._bit_generator.random_raw(vocab_size) & 0xFFFFFF
    uniform = bits.astype(np.float32) * np.float32(2.0**-24)
    noise: Array = -np.log(np.maximum(-np.log(np.float32(1) - uniform), _SMALLEST))
    return noise
