"""Caches of keys and values, for decoding a token at a time.

Shapes: B batch, H query heads, Hkv key/value heads, T tokens, S keys, D head_dim.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt_cli.capabilities import KV_CACHE, RAGGED_CACHE
from gpt_cli.config import ModelConfig
from gpt_cli.model.attention import causal_attention, ragged_attention


class KVCache:
    """Keys and values of each layer; the first `length` positions of every sequence are filled.

    A forward pass over T tokens with this cache continues at position `length` and adds T to it.
    """

    capabilities = KV_CACHE

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        *,
        max_length: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`max_length`: positions to allocate; None: `context_length`.

        Raises ValueError for a model with options that the cache does not support.
        """
        if (reason := self.capabilities.refusal(config)) is not None:
            raise ValueError(f"{self.capabilities.name} does not know {reason}")
        shape = (config.n_layer, batch, config.kv_heads, max_length or config.context_length, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)  # unfilled positions may be multiplied by 0
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.length = 0

    @property
    def start(self) -> int | Tensor:
        """The position of the next token: an int for all sequences, or (B,)."""
        return self.length

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, Hkv, T, D) keys and values; returns all of the layer."""
        end = self.length + k.shape[2]
        self.keys[layer, :, :, self.length : end] = k
        self.values[layer, :, :, self.length : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, slopes: Tensor | None = None
    ) -> Tensor:
        """Append (B, Hkv, T, D) keys and values; (B, H, T, D) queries -> (B, H, T, D), over the whole cache."""
        k, v = self.update(layer, k, v)
        return causal_attention(q, k, v, window=window, slopes=slopes)

    def advance(self, n_token: int) -> None:
        """Count `n_token` positions as filled: once per forward pass, after its last layer."""
        self.length += n_token

    def reorder(self, rows: Sequence[int]) -> None:
        """Sequence i becomes a copy of sequence `rows[i]`; the batch size becomes the number of rows."""
        index = torch.tensor(rows, device=self.keys.device)
        if len(rows) == self.keys.shape[1]:  # copy only the filled positions
            filled = slice(0, self.length)
            self.keys[:, :, :, filled] = self.keys[:, index, :, filled]
            self.values[:, :, :, filled] = self.values[:, index, :, filled]
        else:
            self.keys, self.values = self.keys[:, index], self.values[:, index]

    def copy_from(self, rows: Sequence[int], prefilled: "KVCache", lengths: Sequence[int]) -> None:
        """Sequences `rows` become those of `prefilled`, with `lengths` filled positions, here all equal."""
        index = torch.tensor(rows, device=self.keys.device)
        self.keys[:, index, :, : prefilled.length] = prefilled.keys[:, :, :, : prefilled.length]
        self.values[:, index, :, : prefilled.length] = prefilled.values[:, :, :, : prefilled.length]
        self.length = max(lengths)


class RaggedCache(KVCache):
    """A cache of sequences of unequal length, without padding on the left; `length` is that of the longest."""

    capabilities = RAGGED_CACHE

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        *,
        max_length: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(config, batch, max_length=max_length, device=device, dtype=dtype)
        self._lengths = [0] * batch
        self._start = torch.zeros(batch, dtype=torch.long, device=device)
        self._row = torch.arange(batch, device=device)[:, None]

    @property
    def start(self) -> Tensor:
        """(B,): the position of the next token of each sequence."""
        return self._start

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, slopes: Tensor | None = None
    ) -> Tensor:
        """As in `KVCache`, each sequence at its own position."""
        slots = self._start[:, None] + torch.arange(k.shape[2], device=k.device)  # (B, T)
        self.keys[layer].transpose(1, 2)[self._row, slots] = k.transpose(1, 2)
        self.values[layer].transpose(1, 2)[self._row, slots] = v.transpose(1, 2)
        end = self.length + k.shape[2]
        keys, values = self.keys[layer, :, :, :end], self.values[layer, :, :, :end]
        return ragged_attention(q, keys, values, self._start, window=window, slopes=slopes)

    def advance(self, n_token: int) -> None:
        """Count `n_token` more positions of each sequence as filled."""
        self._lengths = [length + n_token for length in self._lengths]
        self._start = self._start + n_token
        self.length += n_token

    def reorder(self, rows: Sequence[int]) -> None:
        super().reorder(rows)
        self._row = torch.arange(len(rows), device=self.keys.device)[:, None]
        self._set([self._lengths[row] for row in rows])

    def copy_from(self, rows: Sequence[int], prefilled: KVCache, lengths: Sequence[int]) -> None:
        """As in `KVCache`; sequence `rows[i]` has `lengths[i]` positions, and those of `prefilled` past them are not
        seen."""
        super().copy_from(rows, prefilled, lengths)
        for row, length in zip(rows, lengths, strict=True):
            self._lengths[row] = length
        self._set(self._lengths)

    def _set(self, lengths: list[int]) -> None:
        self._lengths, self.length = lengths, max(lengths)
        self._start = torch.tensor(lengths, device=self._start.device)
