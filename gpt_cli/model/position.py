"""Positions: sinusoids that are added to the stream, and rotations of queries and keys.

Shapes: T tokens, C n_embd, H heads, D head_dim.
"""

import torch
from torch import Tensor, nn


def sinusoids(length: int, width: int) -> Tensor:
    """(length, width) sines and cosines of geometric wavelengths (Vaswani et al., 2017, section 3.5)."""
    angles = torch.outer(torch.arange(length).float(), _frequencies(width, 10_000.0))  # (length, width / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # sine and cosine take turns


class Rotary(nn.Module):
    """Rotate queries and keys by their position, so that scores depend on distance (Su et al., 2021).

    Dimension i is paired with i + D / 2, the layout of Llama and Qwen.
    """

    def __init__(self, length: int, head_dim: int, theta: float) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(length).float(), _frequencies(head_dim, theta))  # (length, D / 2)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor, start: int) -> Tensor:
        """(B, H, T, D) at positions `start` and after -> (B, H, T, D), rotated."""
        end = start + x.shape[2]
        cos, sin = self.cos[start:end].to(x.dtype), self.sin[start:end].to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Unrotated(nn.Module):
    """What stands in for `Rotary` where positions come in another way, or not at all."""

    def forward(self, x: Tensor, start: int) -> Tensor:
        """(B, H, T, D) -> the same."""
        return x


def _frequencies(width: int, theta: float) -> Tensor:
    """(width / 2,) angular frequencies, from 1 down to about 1 / theta."""
    return theta ** -(torch.arange(0, width, 2).float() / width)
