"""The loss of a large vocabulary in pieces: its logits are never whole, neither forwards nor backwards.

Shapes: N tokens, n of them in a piece, C n_embd, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from gpt_cli.model.gpt import GPT

# Logits in a piece: 32 MiB of fp32 on a CPU, 512 MiB elsewhere, where pieces must be large enough to keep it busy.
_CPU_LOGITS, _LOGITS = 2**23, 2**27


def logits_per_piece(device: torch.device) -> int:
    """How many numbers a piece of the logits has at most on `device`, unless one token has more."""
    return _CPU_LOGITS if device.type == "cpu" else _LOGITS


def wants_pieces(model: GPT, tokens: int) -> bool:
    """Whether the logits of so many tokens are more than one piece."""
    return tokens * model.head.out_features > logits_per_piece(model.head.weight.device)


def chunked_loss(model: GPT, inputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """(B, T), (B, T) -> the mean or the sum of -log p(target), in nats: `cross_entropy(model(inputs), targets)`."""
    hidden = model.hidden(inputs).flatten(0, 1)  # (N, C)
    weight, device = model.head.weight, hidden.device
    dtype = hidden.dtype
    if model.head.bf16_products:
        dtype = torch.bfloat16
    elif torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    rows = max(1, logits_per_piece(device) // weight.shape[0])
    cap = model.config.logit_softcap
    total: Tensor = _SummedLoss.apply(hidden, weight, targets.flatten(), cap, rows, dtype)  # type: ignore[no-untyped-call]
    return total / len(hidden) if reduction == "mean" else total


class _SummedLoss(torch.autograd.Function):
    """(N, C), (V, C), (N,) -> the sum of -log softmax(cap(hidden weight^T)) at the targets, `rows` tokens at a time.

    The gradients are worked out in the forward pass, where each piece of the logits is at hand: nothing is kept of
    it, nothing computed twice (Hsu et al., 2024, "Liger Kernel"). Products are in `dtype`, sums in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, cap: float | None, rows: int, dtype: torch.dtype
    ) -> Tensor:
        matrix, exact = weight.to(dtype), torch.promote_types(hidden.dtype, torch.float32)
        learns = any(ctx.needs_input_grad)
        to_hidden = torch.empty_like(hidden) if learns else None  # (N, C)
        to_weight = torch.zeros_like(weight, dtype=exact) if learns else None  # (V, C)
        total = torch.zeros((), dtype=exact, device=hidden.device)
        for start in range(0, len(hidden), rows):
            piece = slice(start, start + rows)
            x, target = hidden[piece].to(dtype), targets[piece, None]  # (n, C), (n, 1)
            logits = (x @ matrix.mT).to(exact)  # (n, V)
            squashed = None
            if cap is not None:
                squashed = torch.tanh(logits / cap)
                logits = cap * squashed
            log_p = logits.log_softmax(dim=-1)
            total -= log_p.gather(1, target).sum()
            if to_hidden is None or to_weight is None:
                continue
            gradient = log_p.exp_()
            gradient.scatter_(1, target, gradient.gather(1, target) - 1.0)  # softmax minus the target: (n, V)
            if squashed is not None:
                gradient *= 1.0 - squashed.square()  # the slope of the cap
            rounded = gradient.to(dtype)
            to_hidden[piece] = (rounded @ matrix).to(hidden.dtype)
            to_weight += (rounded.mT @ x).to(exact)
        ctx.save_for_backward(to_hidden, to_weight)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        to_hidden, to_weight = ctx.saved_tensors
        from_hidden, from_weight = ctx.needs_input_grad[:2]
        return (
            (to_hidden * upstream.to(to_hidden.dtype)) if from_hidden else None,
            (to_weight * upstream) if from_weight else None,
            None,
            None,
            None,
            None,
        )
