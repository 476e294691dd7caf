"""The gate of SwiGLU, with a backward pass that puts no pieces together.

Shapes: F hidden width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def swiglu(gate_up: Tensor) -> Tensor:
    """(..., 2F) -> (..., F): silu(gate) * up, of the two halves of the last dimension (Shazeer, 2020, equation 6)."""
    gated: Tensor = _SwiGLU.apply(gate_up)  # type: ignore[no-untyped-call]
    return gated


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        activated = F.silu(gate)
        ctx.save_for_backward(gate_up, activated)
        return activated * up

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gate_up, activated = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        if torch.compiler.is_compiling():  # the compiler puts pieces together by itself, and cannot follow the below
            return torch.cat((torch.ops.aten.silu_backward(gradient * up, gate), gradient * activated), dim=-1)
        both = torch.empty_like(gate_up)
        to_gate, to_up = both.chunk(2, dim=-1)
        torch.mul(gradient, activated, out=to_up)
        torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=to_gate)
        return both
