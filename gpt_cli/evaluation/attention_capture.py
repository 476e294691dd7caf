"""Capture the queries, keys and values of each layer with hooks, without changes to the model.

Shapes: T tokens, H query heads, Hkv key/value heads (a divisor of H), D head_dim.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpt_cli.capabilities import ATTENTION_MAPS
from gpt_cli.errors import RequestError
from gpt_cli.model.attention import causal_mask
from gpt_cli.model.gpt import GPT
from gpt_cli.model.layers import Attention


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """The attention of one layer over one sequence. Queries and keys are normalised and rotated."""

    layer: int
    q: Tensor
    """(H, T, D)."""
    k: Tensor
    """(Hkv, T, D): query head h uses key head h // (H / Hkv)."""
    v: Tensor
    """(Hkv, T, D)."""
    output: Tensor
    """(H, T, D): the attention output of the model itself, from whichever kernel it uses."""
    window: int | None

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.q.shape[0] // self.k.shape[0]

    def scores(self) -> Tensor:
        """(H, T, T) q k^T / sqrt(D) in fp64; minus infinity for masked keys."""
        k = self.k.double().repeat_interleave(
            self.group, dim=0
        )  # training may have lowered the precision of fp32 matmuls
        scores = self.q.double() @ k.mT / math.sqrt(self.q.shape[-1])
        n_token = self.q.shape[1]
        return scores.masked_fill(~causal_mask(n_token, n_token, self.window, self.q.device), -math.inf)

    def weights(self) -> Tensor:
        """(H, T, T) softmax of the scores over keys: each row, of one query, sums to 1."""
        return self.scores().softmax(dim=-1).float()


@torch.no_grad()
def capture_attention(model: GPT, tokens: Sequence[int]) -> list[LayerAttention]:
    """The attention of each layer of `model` over the sequence `tokens`, on the CPU in fp32, from one forward pass.

    The model runs in eval mode. Raises ValueError for more tokens than its context, RequestError for a model with
    unsupported options.
    """
    if (reason := ATTENTION_MAPS.refusal(model.config)) is not None:
        raise RequestError(f"the attention of a model with {reason} cannot be shown")
    modules = [module for module in model.modules() if isinstance(module, Attention)]
    was_training = model.training
    model.eval()
    try:
        with _capture_hooks(modules) as captured:
            model(torch.tensor([list(tokens)], device=model.head.weight.device))
    finally:
        model.train(was_training)
    return [_layer_attention(module, captured[module]) for module in modules]


class _CapturedTensors:
    """Tensors recorded by the hooks of one attention module."""

    def __init__(self) -> None:
        self.qkv: Tensor  # (1, T, (H + 2 Hkv) D) queries, keys and values before they are normalised
        self.rotated: list[Tensor] = []  # (1, H, T, D) queries, then (1, Hkv, T, D) keys
        self.output: Tensor  # (1, T, H D)


@contextmanager
def _capture_hooks(modules: Sequence[Attention]) -> Iterator[dict[Attention, _CapturedTensors]]:
    """Hook `modules`: each forward pass stores its tensors in the yielded dictionary."""
    captured = {module: _CapturedTensors() for module in modules}
    handles = [handle for module in modules for handle in _register_hooks(module, captured[module])]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()


def _register_hooks(module: Attention, captured: _CapturedTensors) -> list[Any]:
    def store_qkv(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        captured.qkv = output

    def store_rotated(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        captured.rotated.append(output)

    def store_output(_module: nn.Module, inputs: tuple[Tensor]) -> None:
        (captured.output,) = inputs

    return [
        module.qkv.register_forward_hook(store_qkv),
        module.rotary.register_forward_hook(store_rotated),
        module.out.register_forward_pre_hook(store_output),
    ]


def _layer_attention(module: Attention, captured: _CapturedTensors) -> LayerAttention:
    n_token, width = captured.qkv.shape[1], module.head_dim
    q, k = captured.rotated
    heads = captured.qkv.view(n_token, -1, width).transpose(0, 1)  # (H + 2 Hkv, T, D)
    _, _, v = heads.split(module.heads, dim=0)
    output = captured.output.view(n_token, -1, width).transpose(0, 1)  # (H, T, D)
    q, k, v, output = (tensor.detach().cpu().float() for tensor in (q[0], k[0], v, output))
    return LayerAttention(module.layer, q, k, v, output, module.window)
