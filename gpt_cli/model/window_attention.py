"""Attention in a window by FlexAttention (Dong et al., 2024), which skips the blocks of keys that no query sees.

Importing this loads torch's compiler, which takes half as long as importing torch.

Shapes: B batch, T tokens, H query heads, Hkv key/value heads, D head_dim.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

_OptionalTensor = Tensor | None
_Blocks = tuple[
    Tensor, Tensor, _OptionalTensor, _OptionalTensor, _OptionalTensor, _OptionalTensor, _OptionalTensor, _OptionalTensor
]
"""The tensors of a `BlockMask`, in its order."""


def flex_window_attention(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """(B, H, T, D), (B, Hkv, T, D) twice -> (B, H, T, D): a query sees the last `window` keys up to its own."""
    n_token = q.shape[2]
    blocks: _Blocks = window_blocks(n_token, window, q.device)
    mask = BlockMask((n_token, n_token), *blocks, (128, 128), _visibility(window))
    q, k = q.to(v.dtype), k.to(v.dtype)  # under autocast q_norm and k_norm return fp32
    return flex_attention(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def window_blocks(n_token: int, window: int, device: torch.device) -> _Blocks:
    """The block mask of a window: cached for all layers and steps, and a constant for the compiler."""
    return _window_blocks(n_token, window, device)


@cache
def _window_blocks(n_token: int, window: int, device: torch.device) -> _Blocks:
    mask = create_block_mask(_visibility(window), None, None, n_token, n_token, device=device)
    keys = (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices)
    return (*keys, mask.q_num_blocks, mask.q_indices, mask.full_q_num_blocks, mask.full_q_indices)


def _visibility(window: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - window)

    return is_visible
