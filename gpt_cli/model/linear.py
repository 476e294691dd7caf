"""Linear layers whose products a CPU can compute in bf16.

Shapes: N rows (batch times tokens), I inputs, O outputs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Linear(nn.Linear):
    """x W^T + b. With `bf16_products`, the matrix products of both passes are computed in bf16, all else in fp32.

    It is what autocast does on a GPU, without its bf16 elementwise operations, which are slow on a CPU. Each
    matrix is rounded once, for both passes; torch's own way ("medium" precision) rounds it again in each product.
    """

    bf16_products = False

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., O)."""
        if not self.bf16_products:
            return F.linear(x, self.weight, self.bias)
        y: Tensor = _Bf16Product.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias


class _Bf16Product(torch.autograd.Function):
    """(..., I), (O, I) -> (..., O)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows, matrix = x.flatten(0, -2).bfloat16(), weight.bfloat16()  # (N, I), (O, I)
        ctx.save_for_backward(rows, matrix)
        return (rows @ matrix.mT).float().view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, matrix = ctx.saved_tensors
        upstream = gradient.flatten(0, -2).bfloat16()  # (N, O)
        to_x = (upstream @ matrix).float().view(*gradient.shape[:-1], -1) if ctx.needs_input_grad[0] else None
        to_weight = (upstream.mT @ rows).float() if ctx.needs_input_grad[1] else None
        return to_x, to_weight
