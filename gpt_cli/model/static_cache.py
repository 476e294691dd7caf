"""A cache whose every shape and address stays as it is while it fills, so that decoding with it can be recorded.

Shapes: B batch, H query heads, Hkv key/value heads, T tokens, S keys, D head_dim.
"""

import math

import torch
from torch import Tensor

from gpt_cli.model.attention import masked_attention, visible_from
from gpt_cli.model.kv_cache import KVCache


class StaticCache(KVCache):
    """The keys and values of another cache, in the same memory, and how many there are as numbers on the device.

    A forward pass with it does the same operations on the same memory whatever the positions, which is what a CUDA
    graph repeats. Attention reads `seen` positions of the room, of which those that are not filled are hidden. The
    other cache, `plain`, knows what is filled: it is told by its own `advance`, and `follow` takes it over from there.
    """

    def __init__(self, plain: KVCache, seen: int | None = None) -> None:
        """`seen` must be more than are filled once the last forward pass is done; None: all the room."""
        self.plain, self.keys, self.values = plain, plain.keys, plain.values
        _, batch, _, room, _ = self.keys.shape
        device = self.keys.device
        self.seen = room if seen is None else seen
        self._start = torch.zeros(batch, dtype=torch.long, device=device)
        # Of each layer by itself, and not transposed: in these the compiler writes in place, a larger one it copies.
        self._layers = list(zip(self.keys, self.values, strict=True))  # (B, Hkv, S, D) each
        self._row = torch.arange(batch, device=device)[:, None, None]
        self._head = torch.arange(self.keys.shape[2], device=device)[:, None]
        self._slots = self._bias = torch.empty(0)  # of the forward pass that is being made
        self.length = 0  # a number, and so nothing to compute with: `plain` has it
        self.follow()

    def follow(self) -> None:
        """Go on behind what `plain` holds."""
        assert self.plain.keys is self.keys, "the cache has moved"
        start = self.plain.start
        self._start.fill_(start) if isinstance(start, int) else self._start.copy_(start)

    @property
    def start(self) -> Tensor:
        """(B,): the position of the next token of each sequence."""
        return self._start

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None) -> Tensor:
        """As in `KVCache`, each sequence at its own position; `window` is the same in every layer."""
        if layer == 0:  # the same for all
            self._slots = self._start[:, None, None] + torch.arange(k.shape[2], device=k.device)  # (B, 1, T)
            visible = visible_from(self._start, k.shape[2], self.seen, window)  # (B, 1, T, S)
            self._bias = torch.zeros_like(visible, dtype=q.dtype).masked_fill_(~visible, -math.inf)
        keys, values = self._layers[layer]
        keys[self._row, self._head, self._slots] = k
        values[self._row, self._head, self._slots] = v
        return masked_attention(q, keys[:, :, : self.seen], values[:, :, : self.seen], self._bias)

    def advance(self, n_token: int) -> None:
        """Count `n_token` positions as filled, on the device alone: `plain` is told by who knows how often this ran."""
        self._start.add_(n_token)

    @property
    def tensors(self) -> list[Tensor]:
        """Whatever a forward pass changes."""
        return [self.keys, self.values, self._start]
