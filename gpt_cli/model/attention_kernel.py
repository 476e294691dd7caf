"""Which of torch's fused attention kernels a GPU uses: all of them compute the same, in their own time.

Shapes: B batch, T tokens, H query heads, Hkv key/value heads, D head_dim.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpt_cli.config import ModelConfig
from gpt_cli.model.attention import causal_attention
from gpt_cli.runtime.device import Runtime
from gpt_cli.runtime.fastest import Candidate

TORCH = "torch"
"""Torch's own choice, made by rules without measuring."""

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_ALWAYS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def preferring(kernel: str) -> AbstractContextManager[object]:
    """Within: attention is computed by that kernel where it knows the shapes, by another where it does not.

    A backward pass that computes activations again has to lie within, too.
    """
    return nullcontext() if kernel == TORCH else sdpa_kernel([KERNELS[kernel], *_ALWAYS], set_priority=True)


def attention_candidates(config: ModelConfig, sequences: int, runtime: Runtime) -> dict[str, Candidate]:
    """Attention, forwards and backwards, for that model and so many sequences: by torch's choice, and by each kernel.

    The inputs are noise of its own, for in a new model the output of attention may have no gradient to check.
    Dropout is left out, whose noise differs from kernel to kernel. Each gives the (B, H, T, D) output and the
    gradients of q, k and v.
    """
    generator = torch.Generator(runtime.device).manual_seed(0)
    heads = (config.n_head, config.kv_heads, config.kv_heads, config.n_head)
    q, k, v, upstream = (
        torch.randn(sequences, config.context_length, n, config.head_dim, generator=generator, device=runtime.device)
        .to(runtime.matmul_dtype)
        .transpose(1, 2)  # the layout that a model gives them
        for n in heads
    )
    inputs = [t.requires_grad_() for t in (q, k, v)]
    compute = partial(_forward_and_backward, inputs, upstream, config.window)
    kernels = {TORCH: None} | KERNELS
    return {name: partial(compute, kernel) for name, kernel in kernels.items()}


def _forward_and_backward(
    inputs: Sequence[Tensor], upstream: Tensor, window: int | None, kernel: SDPBackend | None
) -> list[Tensor]:
    q, k, v = inputs
    with nullcontext() if kernel is None else sdpa_kernel(kernel):  # this one or an error
        y = causal_attention(q, k, v, window=window)
        return [y, *torch.autograd.grad(y, inputs, upstream)]
