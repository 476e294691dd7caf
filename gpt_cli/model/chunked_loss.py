"""The loss of a large vocabulary in chunks of tokens: no pass allocates all logits at once.

Shapes: N tokens, n of them in a chunk, C n_embd, V vocabulary, V' the same as padded by the head (`lm_head.py`).
"""

import math
from typing import Any

import torch
from torch import Tensor

from gpt_cli.model.gpt import GPT
from gpt_cli.model.lm_head import TILE, pad_vocabulary

# Logits in a chunk: 32 MiB of fp32 on a CPU; 512 MiB on a GPU, which small chunks would not keep busy, and as much for
# each 16 GiB of its memory, up to 2 GiB. The compiler unrolls the chunks: with 4 of them, GPT-2's step of 32 x 1,024
# tokens took 19 s to compile, with 13 of them 34 s, and 1 % longer to compute (docs/howto/gpu.md).
MAX_CPU_LOGITS, MAX_LOGITS = 2**23, 2**27
_MEMORY_UNIT, _MOST_UNITS = 2**34, 4


def max_chunk_logits(device: torch.device) -> int:
    """The maximal number of logits in a chunk on `device`, unless one token has more."""
    if device.type == "cpu":
        return MAX_CPU_LOGITS
    if device.type != "cuda" or not torch.cuda.is_available():
        return MAX_LOGITS
    units = torch.cuda.get_device_properties(device).total_memory // _MEMORY_UNIT
    return MAX_LOGITS * min(max(units, 1), _MOST_UNITS)


def needs_chunking(model: GPT, tokens: int) -> bool:
    """True if the logits of this many tokens do not fit in one chunk."""
    return tokens * model.head.out_features > max_chunk_logits(model.head.weight.device)


def chunked_loss(model: GPT, inputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """(B, T), (B, T) -> the mean or the sum of -log p(target), in nats: `cross_entropy(model(inputs), targets)`.

    A negative target does not count.
    """
    hidden = model.features(inputs).flatten(0, 1)  # (N, C)
    weight, device = model.head.weight, hidden.device
    dtype = hidden.dtype
    if device.type != "meta" and torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    rows = rows_per_chunk(len(weight), device)
    cap = model.config.logit_softcap
    # In a Function `needs_input_grad` is true for a parameter even where no gradients are recorded.
    learns = torch.is_grad_enabled() and weight.requires_grad
    total: Tensor = _ChunkedCrossEntropy.apply(hidden, weight, targets.flatten(), cap, rows, dtype, learns)  # type: ignore[no-untyped-call]
    return total / (targets >= 0).sum() if reduction == "mean" else total


def rows_per_chunk(vocab_size: int, device: torch.device) -> int:
    """Tokens in a chunk: a multiple of 128, for tensor cores, unless a chunk has fewer."""
    rows = max(1, max_chunk_logits(device) // vocab_size)
    return rows - rows % TILE if rows >= TILE else rows


class _ChunkedCrossEntropy(torch.autograd.Function):
    """(N, C), (V, C), (N,) -> the sum of -log softmax(cap(hidden weight^T)) at the targets, `rows` tokens at a time.

    The gradients are computed in the forward pass, from each chunk of logits in turn: no logits are saved and none are
    computed twice (Hsu et al., 2024, "Liger Kernel"). Products are in `dtype`, sums in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        cap: float | None,
        rows: int,
        dtype: torch.dtype,
        weight_learns: bool,
    ) -> Tensor:
        vocab_size, sum_dtype = len(weight), torch.promote_types(hidden.dtype, torch.float32)
        matrix = pad_vocabulary(weight.to(dtype))  # (V', C)
        hidden_grad = torch.empty_like(hidden) if hidden.requires_grad else None  # (N, C)
        weight_grad = torch.zeros_like(weight, dtype=sum_dtype) if weight_learns else None  # (V, C)
        total = torch.zeros((), dtype=sum_dtype, device=hidden.device)
        for start in range(0, len(hidden), rows):
            chunk = slice(start, start + rows)
            x, target = hidden[chunk].to(dtype), targets[chunk, None]  # (n, C), (n, 1)
            counts = target >= 0  # applied to smaller tensors than the gradient of the logits
            learns = hidden_grad is not None or weight_grad is not None
            loss, gradient = _chunk_loss(x, matrix, target, vocab_size, cap, sum_dtype, learns=learns)
            total = total + loss  # in place, torch 2.11 compiles a backward pass of zeros
            if hidden_grad is not None:
                hidden_grad[chunk] = (gradient @ matrix * counts).to(hidden.dtype)
            if weight_grad is not None:
                weight_grad += (gradient.mT @ (x * counts))[:vocab_size].to(sum_dtype)
            del gradient  # free it before the logits of the next chunk
        ctx.save_for_backward(hidden_grad, weight_grad)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad = ctx.saved_tensors
        return (
            None if hidden_grad is None else hidden_grad * upstream.to(hidden_grad.dtype),
            None if weight_grad is None else weight_grad * upstream,
            *[None] * 5,
        )


def _chunk_loss(
    x: Tensor, matrix: Tensor, target: Tensor, vocab_size: int, cap: float | None, exact: torch.dtype, *, learns: bool
) -> tuple[Tensor, Tensor]:
    """(n, C), (V', C), (n, 1) -> the sum of the losses, and its gradient to the logits, (n, V'); or empty.

    The gradient in the rows of targets that do not count is not 0, and is not to be used.
    """
    logits = (x @ matrix.mT).to(exact)  # (n, V')
    squashed = None
    if cap is not None:
        squashed = torch.tanh(logits / cap)
        logits = cap * squashed
    if len(matrix) > vocab_size:  # no probability for what is no id, and so no gradient
        logits[:, vocab_size:] = -math.inf
    logits = logits.log_softmax(dim=-1)  # the same name, so that the logits are freed
    counts = target >= 0
    loss = -logits.gather(1, target.clamp_min(0)).mul_(counts).sum()
    if not learns:
        return loss, x.new_empty(0)
    # Softmax minus the one-hot target. A comparison fuses with its neighbours; a scatter does not, and deterministic
    # algorithms sort for it.
    ids = torch.arange(len(matrix), device=x.device)
    gradient = logits.exp_().add_(ids == target, alpha=-1)
    if squashed is not None:
        gradient *= squashed.square_().neg_().add_(1.0)  # the slope of the cap, 1 - tanh^2
    return loss, gradient.to(x.dtype)
