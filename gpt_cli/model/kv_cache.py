"""Keys and values already computed, so that decoding a token costs one token.

Shapes: B batch, Hkv key/value heads, S keys, D head_dim.
"""

import torch
from torch import Tensor

from gpt_cli.config import ModelConfig


class KVCache:
    """Room for `context_length` positions of each layer; `length` of them are filled.

    A forward pass over T tokens with this cache continues at position `length` and adds T to it.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (config.n_layer, batch, config.kv_heads, config.context_length, config.head_dim)
        self.keys = torch.empty(shape, device=device, dtype=dtype)
        self.values = torch.empty(shape, device=device, dtype=dtype)
        self.length = 0

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store (B, Hkv, T, D) keys and values after the ones held; returns all of the layer."""
        end = self.length + k.shape[2]
        self.keys[layer, :, :, self.length : end] = k
        self.values[layer, :, :, self.length : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def advance(self, n_token: int) -> None:
        """Count `n_token` positions as filled: once per forward pass, after its last layer."""
        self.length += n_token

    def reset(self) -> None:
        """Forget everything."""
        self.length = 0

    def expand(self, batch: int) -> None:
        """Repeat the one sequence held for `batch` sequences that continue it in different ways."""
        layers, _, *rest = self.keys.shape
        self.keys = self.keys.expand(layers, batch, *rest).contiguous()
        self.values = self.values.expand(layers, batch, *rest).contiguous()
