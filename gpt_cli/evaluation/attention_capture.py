"""The queries, keys and values that each layer attends with, seen from outside: the model's forward is not touched.

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
    """One layer on one sequence. Queries and keys are as they meet: normalised and rotated."""

    layer: int
    q: Tensor
    """(H, T, D)."""
    k: Tensor
    """(Hkv, T, D): query head h uses key head h // (H / Hkv)."""
    v: Tensor
    """(Hkv, T, D)."""
    output: Tensor
    """(H, T, D): what the model itself computed from them, by whichever of its fast paths."""
    window: int | None

    @property
    def n_head(self) -> int:
        return self.q.shape[0]

    @property
    def group(self) -> int:
        """Query heads to a key head."""
        return self.q.shape[0] // self.k.shape[0]

    def scores(self) -> Tensor:
        """(H, T, T) q k^T / sqrt(D) in fp64; minus infinity where a query does not see a key."""
        k = self.k.double().repeat_interleave(self.group, dim=0)  # fp32 products may be bf16 ones after training
        scores = self.q.double() @ k.mT / math.sqrt(self.q.shape[-1])
        n_token = self.q.shape[1]
        return scores.masked_fill(~causal_mask(n_token, n_token, self.window, self.q.device), -math.inf)

    def weights(self) -> Tensor:
        """(H, T, T) the softmax of the scores: row t is how query t divides its attention; it sums to 1."""
        return self.scores().softmax(dim=-1).float()


@torch.no_grad()
def capture_attention(model: GPT, tokens: Sequence[int]) -> list[LayerAttention]:
    """The attention of each layer of `model` over the sequence `tokens`, on the CPU in fp32, from one forward pass.

    The model is run as it is, without dropout. Raises ValueError when the tokens are more than its context,
    RequestError for a model with options that are not known here.
    """
    if (reason := ATTENTION_MAPS.refusal(model.config)) is not None:
        raise RequestError(f"the attention of a model with {reason} cannot be shown")
    modules = [module for module in model.modules() if isinstance(module, Attention)]
    was_training = model.training
    model.eval()
    try:
        with _watched(modules) as seen:
            model(torch.tensor([list(tokens)], device=model.head.weight.device))
    finally:
        model.train(was_training)
    return [_of_layer(module, seen[module]) for module in modules]


class _Seen:
    """Tensors recorded by the hooks of one attention module."""

    def __init__(self) -> None:
        self.projected: Tensor  # (1, T, (H + 2 Hkv) D) queries, keys and values before they are normalised
        self.rotated: list[Tensor] = []  # (1, H, T, D) queries, then (1, Hkv, T, D) keys
        self.mixed: Tensor  # (1, T, H D)


@contextmanager
def _watched(modules: Sequence[Attention]) -> Iterator[dict[Attention, _Seen]]:
    """Hook `modules`: each forward pass stores what it computed in the yielded dictionary."""
    seen = {module: _Seen() for module in modules}
    handles = [handle for module in modules for handle in _watch(module, seen[module])]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _watch(module: Attention, seen: _Seen) -> list[Any]:
    def projected(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        seen.projected = output

    def rotated(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        seen.rotated.append(output)

    def mixed(_module: nn.Module, inputs: tuple[Tensor]) -> None:
        (seen.mixed,) = inputs

    return [
        module.qkv.register_forward_hook(projected),
        module.rotary.register_forward_hook(rotated),
        module.out.register_forward_pre_hook(mixed),
    ]


def _of_layer(module: Attention, seen: _Seen) -> LayerAttention:
    n_token, width = seen.projected.shape[1], module.head_dim
    q, k = seen.rotated
    heads = seen.projected.view(n_token, -1, width).transpose(0, 1)  # (H + 2 Hkv, T, D)
    _, _, v = heads.split(module.heads, dim=0)
    output = seen.mixed.view(n_token, -1, width).transpose(0, 1)  # (H, T, D)
    q, k, v, output = (tensor.detach().cpu().float() for tensor in (q[0], k[0], v, output))
    return LayerAttention(module.layer, q, k, v, output, module.window)
