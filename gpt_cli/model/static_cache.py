"""A view of a KV cache with fixed shapes, for a decode step under CUDA graphs or torch.compile.

Shapes: B batch, H query heads, Hkv key/value heads, S keys, D head_dim.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt_cli.model.attention import alibi_bias, distances_from, masked_attention, ragged_causal_mask
from gpt_cli.model.kv_cache import KVCache


class StaticCache(KVCache):
    """The first `n_key` positions of another cache, for one token of each sequence, whose positions are a tensor.

    A forward pass with it runs the same operations on the same memory for any positions, and is idempotent. Keys past a
    query's position are hidden; their values only have to be finite. The other cache still has to `advance`.
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], start: Tensor, n_key: int) -> None:
        """(B, Hkv, max_length, D) keys and values of each layer; (B,) positions below `n_key`, at most `max_length`.

        A list of layers rather than one tensor, which the compiler would copy instead of writing in place.
        """
        self.length = 0  # unused: the positions are a tensor
        self._layers, self._start, self._n_key = layers, start, n_key
        batch, n_head = layers[0][0].shape[:2]
        self._slots = (
            torch.arange(batch, device=start.device)[:, None],
            torch.arange(n_head, device=start.device),
            start[:, None],
        )
        self._biases: dict[int | None, Tensor] = {}

    @property
    def start(self) -> Tensor:
        """(B,): the position of the next token of each sequence."""
        return self._start

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, slopes: Tensor | None = None
    ) -> Tensor:
        """Store (B, Hkv, 1, D) keys and values; (B, H, 1, D) queries -> (B, H, 1, D), over the whole cache."""
        keys, values = self._layers[layer]
        keys[self._slots], values[self._slots] = k[:, :, 0], v[:, :, 0]
        if window not in self._biases:  # once for all layers: kernels would convert booleans in each
            visible = ragged_causal_mask(self._start, 1, self._n_key, window)  # (B, 1, 1, S)
            bias = torch.zeros_like(visible, dtype=q.dtype)
            if slopes is not None:  # equal in all layers
                bias = alibi_bias(slopes, distances_from(self._start, 1, self._n_key)).to(q.dtype)  # (B, H, 1, S)
            bias = bias.masked_fill_(~visible, -math.inf)
            self._biases[window] = bias if slopes is None else bias.view(*keys.shape[:2], -1, self._n_key)
        groups = q.reshape(*keys.shape[:2], -1, q.shape[-1])  # the queries of a key head have the same position
        y = masked_attention(groups, keys[:, :, : self._n_key], values[:, :, : self._n_key], self._biases[window])
        return y.reshape(q.shape)

    def advance(self, n_token: int) -> None:
        """Nothing to do: the positions are an input of the step."""
