"""RMS normalisation: its definition, and a backward pass in few operations for a CPU."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """(..., C), (C,) -> (..., C): x / sqrt(mean(x^2) + eps) * gain (Zhang and Sennrich, 2019, equation 4)."""
    if x.device.type == "cpu" and torch.is_grad_enabled():
        y: Tensor = _RMSNorm.apply(x, gain, eps)  # type: ignore[no-untyped-call]
        return y
    return F.rms_norm(x, gain.shape, gain, eps)


class _RMSNorm(torch.autograd.Function):
    """Torch takes its kernel for this apart on a CPU; by hand the step of a small model is a fifth shorter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1)
        scale = torch.rsqrt(norm * norm / x.shape[-1] + eps)
        normalised = x * scale
        ctx.save_for_backward(normalised, scale, gain)
        return normalised * gain

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        normalised, scale, gain = ctx.saved_tensors
        product = gradient * normalised
        along = (product @ gain).unsqueeze(-1) / gain.shape[0]  # (..., 1): the part that normalising takes away
        to_x = torch.addcmul(gradient * gain, normalised, along, value=-1.0).mul_(scale)
        return to_x, product.flatten(0, -2).sum(0), None
