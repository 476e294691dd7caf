"""Positions: sinusoids that are added to the stream, and rotations of queries and keys.

Shapes: T tokens, C n_embd, H heads, D head_dim.
"""

from typing import Any

import torch
from torch import Tensor, nn


def sinusoids(length: int, width: int) -> Tensor:
    """(length, width) sines and cosines of geometric wavelengths (Vaswani et al., 2017, section 3.5)."""
    angles = torch.outer(torch.arange(length).float(), _frequencies(width, 10_000.0))  # (length, width / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # sine and cosine take turns


def positioned(table: Tensor, start: int | Tensor, n_token: int) -> Tensor:
    """The rows of a (length, W) table at `n_token` positions from `start` on.

    (T, W) for an int; (B, T, W) for a (B,) tensor, where each of B sequences stands at its own position.
    """
    if isinstance(start, int):
        return table[start : start + n_token]
    if n_token == 1:
        return table[start[:, None]]  # which a decode step asks four times a layer
    return table[start[:, None] + torch.arange(n_token, device=start.device)]


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

    def forward(self, x: Tensor, start: int | Tensor) -> Tensor:
        """(B, H, T, D) at positions `start` and after, an int or (B,) -> (B, H, T, D), rotated."""
        cos, sin = (positioned(table, start, x.shape[2]).unsqueeze(-3) for table in (self.cos, self.sin))
        rotated: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
        return rotated


class _Rotate(torch.autograd.Function):
    """(B, H, T, D), (B or 1, 1, T, D / 2) twice -> (B, H, T, D). Going backwards is rotating back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos.to(x.dtype), sin.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(gradient, cos.to(gradient.dtype), -sin.to(gradient.dtype)), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (a, b) of x by its angle, written in place: no pieces to put together again."""
    a, b = x.chunk(2, dim=-1)
    if torch.compiler.is_compiling():  # the compiler puts pieces together by itself, and cannot follow the below
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    rotated = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    first, second = rotated.chunk(2, dim=-1)
    torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1.0)
    torch.mul(b, cos, out=second).addcmul_(a, sin)
    return rotated


class Unrotated(nn.Module):
    """What stands in for `Rotary` where positions come in another way, or not at all."""

    def forward(self, x: Tensor, start: int | Tensor) -> Tensor:
        """(B, H, T, D) -> the same."""
        return x


def _frequencies(width: int, theta: float) -> Tensor:
    """(width / 2,) angular frequencies, from 1 down to about 1 / theta."""
    return theta ** -(torch.arange(0, width, 2).float() / width)
