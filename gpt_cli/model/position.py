"""Positions: sinusoids that are added to the stream, and rotations of queries and keys.

Shapes: T tokens, C n_embd, H heads, D head_dim.
"""

import math

import torch
from torch import Tensor, nn

from gpt_cli.config import ModelConfig


def sinusoids(length: int, width: int) -> Tensor:
    """(length, width) sines and cosines of geometric wavelengths (Vaswani et al., 2017, section 3.5)."""
    angles = torch.outer(torch.arange(length).float(), _frequencies(width, 10_000.0))  # (length, width / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # sine and cosine take turns


def gather_positions(table: Tensor, start: int | Tensor, n_token: int) -> Tensor:
    """The rows of a (length, W) table at `n_token` positions from `start` on.

    (T, W) for an int; (B, T, W) for a (B,) tensor of a position for each sequence, or a (B, T) tensor of a position
    for each token.
    """
    if isinstance(start, int):
        return table[start : start + n_token]
    if start.dim() == 2:
        return table[start]
    if n_token == 1:
        return table[start[:, None]]  # the case of a decode step, four times a layer
    return table[start[:, None] + torch.arange(n_token, device=start.device)]


class Rotary(nn.Module):
    """Rotate queries and keys by their position, so that scores depend on distance (Su et al., 2021).

    Dimension i is paired with i + D / 2, the layout of Llama and Qwen.
    """

    def __init__(self, length: int, frequencies: Tensor) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(length).float(), frequencies)  # (length, D / 2)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor, start: int | Tensor) -> Tensor:
        """(B, H, T, D) from position `start` (see `gather_positions`) on -> (B, H, T, D), rotated."""
        cos, sin = (gather_positions(table, start, x.shape[2]).unsqueeze(-3) for table in (self.cos, self.sin))
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)  # (T, D / 2) or (B, 1, T, D / 2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class NoRotary(nn.Module):
    """The identity, in place of `Rotary` for models without rotary embeddings."""

    def forward(self, x: Tensor, start: int | Tensor) -> Tensor:
        """(B, H, T, D) -> the same."""
        return x


def rotary_frequencies(config: ModelConfig) -> Tensor:
    """(D / 2,) angular frequencies of the pairs of dimensions, from 1 down to about 1 / rope_theta.

    Bit-identical to Transformers' `inv_freq`: an error in the last bit would grow with the position.
    """
    if config.rope_rounding == "power":
        frequencies = _frequencies(config.head_dim, config.rope_theta)
    else:
        frequencies = 1.0 / config.rope_theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    return frequencies if config.rope_scaling is None else _scaled(frequencies, *config.rope_scaling)


def _scaled(frequencies: Tensor, factor: float, low: float, high: float, context: int) -> Tensor:
    """(D / 2,) -> the same, with waves longer than context / low `factor` times as long, those shorter than
    context / high as they are, and those between blended (Llama 3.1; Transformers' `_compute_llama3_parameters`).
    """
    waves = 2 * math.pi / frequencies
    lowered = torch.where(waves > context / low, frequencies / factor, frequencies)
    share = (context / waves - low) / (high - low)
    blended = (1 - share) * lowered / factor + share * lowered
    return torch.where((waves >= context / high) & (waves <= context / low), blended, lowered)


def _frequencies(width: int, theta: float) -> Tensor:
    """(width / 2,) angular frequencies, from 1 down to about 1 / theta."""
    return theta ** -(torch.arange(0, width, 2).float() / width)
