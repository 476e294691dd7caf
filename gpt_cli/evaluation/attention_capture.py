"""Queries, keys and values of each layer, recorded by the cache that a forward pass is given.

Shapes: T tokens, H query heads, Hkv key/value heads (a divisor of H), D head_dim.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpt_cli.capabilities import ATTENTION_MAPS
from gpt_cli.errors import RequestError
from gpt_cli.model.attention import causal_mask
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache


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
    weight = model.head.weight
    cache = _RecordingCache(model.config, batch=1, max_length=len(tokens), device=weight.device, dtype=weight.dtype)
    was_training = model.training
    model.eval()
    try:
        model(torch.tensor([list(tokens)], device=weight.device), cache)
    finally:
        model.train(was_training)
    return cache.layers


class _RecordingCache(KVCache):
    """A cache that also keeps the queries, keys, values and outputs of each layer of one sequence."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.layers: list[LayerAttention] = []

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, slopes: Tensor | None = None
    ) -> Tensor:
        """As in `KVCache`."""
        y = super().attend(layer, q, k, v, window=window, slopes=slopes)
        own_q, own_k, own_v, output = (tensor[0].cpu().float() for tensor in (q, k, v, y))
        self.layers.append(LayerAttention(layer, own_q, own_k, own_v, output, window))
        return y
