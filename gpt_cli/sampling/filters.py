"""From logits to the next token: temperature, filters, and a draw by Gumbel noise, without a device sync.

Shapes: B samples, V vocabulary. A filtered token gets the logit -inf; the likeliest always remains. Equally likely
tokens are kept or filtered together, so the result does not depend on the vocabulary's order.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.shuffle import derive_seed

_WHOLE = 2**40  # the probability 1 in fixed point
_BLOCK = 2**16  # numbers drawn at once for each sample
CPU_BLOCK = 2**12  # on a CPU values do not depend on it: small, for batches of short texts
_SMALLEST = 2.0**-25  # half of the spacing of uniform fp32 numbers


def next_token(logits: Tensor, sampling: SamplingParams, noise: Tensor | None) -> Tensor:
    """(B, V) logits, (B, V) standard Gumbel noise -> (B,): a token for each sample.

    The largest of logits + noise is a draw from softmax(logits) (the Gumbel-max trick); None is for greedy
    sampling.
    """
    if noise is None:
        return logits.argmax(dim=-1)
    return (filter_logits(logits, sampling) + noise).argmax(dim=-1)


def filter_logits(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """(B, V) -> (B, V) fp32: divided by the temperature, which is not 0; then top-k, top-p, min-p.

    Each filter gets the renormalised result of the one before; the order is that of Hugging Face.
    """
    logits = logits.float() / sampling.temperature
    if sampling.top_k is not None:
        logits = keep_top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = keep_top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = keep_min_p(logits, sampling.min_p)
    return logits


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the tokens that have fewer than `k` likelier ones."""
    kth = logits.topk(min(k, logits.shape[-1])).values[:, -1:]  # (B, 1)
    return _keep_from(logits, kth)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens for which all likelier ones together have a probability below `p`.

    That is the smallest set of likeliest tokens with at least the probability `p` (Holtzman et al., 2020).
    """
    if p >= 1:
        return logits  # rounding must not filter the tail
    descending = logits.sort(descending=True).values
    # In integers the running sum is exact, and deterministic on every device; in floats it is not on CUDA.
    probability = (descending.softmax(dim=-1) * _WHOLE).long()
    likelier = probability.cumsum(dim=-1) - probability
    n_kept = (likelier < p * _WHOLE).sum(dim=-1, keepdim=True).clamp(min=1)  # (B, 1); p may be 0 in fp32
    return _keep_from(logits, descending.gather(-1, n_kept - 1))


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens at least `p` times as likely as the likeliest (Nguyen et al., 2024)."""
    return _keep_from(logits, logits.amax(dim=-1, keepdim=True) + math.log(p))


def _keep_from(logits: Tensor, threshold: Tensor) -> Tensor:
    return logits.masked_fill(logits < threshold, -math.inf)


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
