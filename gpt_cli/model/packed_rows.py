"""Several sequences packed into one row: positions restart, and attention stops at the boundaries.

The first token of each sequence in a packed row is stored as its complement, ~id, which is negative.
Shapes: B rows, T tokens of each, H query heads, Hkv key/value heads, D head_dim.
"""

import math

import torch
from torch import Tensor

from gpt_cli.capabilities import PACKED_ROWS
from gpt_cli.model.attention import alibi_bias, causal_mask, distances, masked_attention
from gpt_cli.model.kv_cache import KVCache


class PackedRows(KVCache):
    """Passed as a cache to a forward pass over packed rows; it stores nothing, but has the positions and the mask."""

    capabilities = PACKED_ROWS

    def __init__(self, begins: Tensor) -> None:
        """`begins`: (B, T) booleans, whether a sequence begins here; the first of a row always does."""
        self.length = 0
        n_token = begins.shape[1]
        index = torch.arange(n_token, device=begins.device)
        self._positions = index - torch.where(begins, index, 0).cummax(dim=1).values  # (B, T)
        sequence = begins.cumsum(dim=1)
        self._same = (sequence[:, :, None] == sequence[:, None, :])[:, None]  # (B, 1, T, T)

    @property
    def start(self) -> Tensor:
        """(B, T): the position of each token in its sequence."""
        return self._positions

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, slopes: Tensor | None = None
    ) -> Tensor:
        """(B, H, T, D), (B, Hkv, T, D) twice -> (B, H, T, D): a query sees its own sequence, up to itself."""
        n_token = q.shape[2]
        visible = self._same & causal_mask(n_token, n_token, window, q.device)
        if slopes is None:
            return masked_attention(q, k, v, visible)
        bias = alibi_bias(slopes, distances(n_token, n_token, q.device)).to(q.dtype)
        return masked_attention(q, k, v, torch.where(visible, bias, -math.inf))

    def advance(self, n_token: int) -> None:
        """Nothing to do."""


def unpack(tokens: Tensor) -> tuple[Tensor, PackedRows]:
    """(B, T) tokens, the first of each sequence as its complement -> the tokens, and their positions and mask.

    A row without a mark is one sequence.
    """
    begins = tokens < 0
    return torch.where(begins, ~tokens, tokens), PackedRows(begins)
