"""Causal self-attention: its definition, the fast backends, and the choice among them.

Shapes: B batch, T queries, S keys, H query heads, Hkv key/value heads (a divisor of H), D head_dim.
Query t stands at position S - T + t, so it sees the keys up to and including that one.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

# Up to so many keys a CPU is faster with two batched products than with its flash kernel, whose backward pass
# is slow; forward and backward of (16, 4, 128, 32) took 6 ms against 15 ms (`python -m bench.attention`).
# A single query, as in decoding, that kernel answers in a quarter to two fifths of the time; those of 64 texts in about
# the same, with grouped heads in up to twice as long, of which nothing is left over whole texts.
_CPU_MATMUL_KEYS = 192


def causal_attention(q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, dropout: float = 0.0) -> Tensor:
    """(B, H, T, D), (B, Hkv, S, D), (B, Hkv, S, D) -> (B, H, T, D); query t sees keys up to S - T + t.

    With `window`, a query sees only the last `window` keys up to its own. `dropout` acts on the weights.
    Equal to `reference_attention` when dropout is 0.
    """
    if q.device.type == "cpu" and q.shape[2] > 1 and k.shape[2] <= _CPU_MATMUL_KEYS:
        return matmul_attention(q, k, v, window=window, dropout=dropout)
    return sdpa_attention(q, k, v, window=window, dropout=dropout)


def reference_attention(q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None) -> Tensor:
    """The definition (Vaswani et al., 2017, equation 1, with a causal mask), written out; shapes as above.

    softmax(q k^T / sqrt(D)) v, where the softmax runs over the keys that a query sees.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # (B, H, S, D)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, T, S)
    scores = scores.masked_fill(~visible_keys(q.shape[2], k.shape[2], window, q.device), -math.inf)
    return scores.softmax(dim=-1) @ v


def ragged_attention(q: Tensor, k: Tensor, v: Tensor, start: Tensor, *, window: int | None = None) -> Tensor:
    """`causal_attention` where query t of sequence b stands at position start[b] + t, and key s at position s.

    `start` is (B,); the other shapes are as above. Keys past a query's position are hidden, whatever they hold, as
    long as it is finite.
    """
    return masked_attention(q, k, v, visible_from(start, q.shape[2], k.shape[2], window))


def visible_from(start: Tensor, n_query: int, n_key: int, window: int | None) -> Tensor:
    """(B, 1, T, S) booleans: whether query t of sequence b, at position start[b] + t, may see key s, at position s."""
    keys = torch.arange(n_key, device=start.device)
    queries = (start[:, None] + torch.arange(n_query, device=start.device))[:, None, :, None]  # (B, 1, T, 1)
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    return visible


def masked_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """(B, H, T, D), (B, Hkv, S, D) twice -> (B, H, T, D): of the keys that are `visible`, (B, 1, T, S) booleans,
    or what is added to their scores."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=q.shape[1] != k.shape[1])


def visible_keys(n_query: int, n_key: int, window: int | None, device: torch.device) -> Tensor:
    """(T, S) booleans: whether query t may see key s."""
    visible = torch.ones(n_query, n_key, dtype=torch.bool, device=device).tril(n_key - n_query)
    return visible if window is None else visible.triu(n_key - n_query - window + 1)


def matmul_attention(q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, dropout: float = 0.0) -> Tensor:
    """`causal_attention` as two batched products around a softmax: the fewest operations at short context."""
    batch, n_head, n_query, width = q.shape
    n_kv, n_key = k.shape[1], k.shape[2]
    group = n_head // n_kv
    hidden = ~visible_keys(n_query, n_key, window, q.device)
    bias = torch.zeros(n_query, n_key, dtype=q.dtype, device=q.device).masked_fill_(hidden, -math.inf)
    queries = q.reshape(batch * n_kv, group * n_query, width)  # the queries that share a key head, one after another
    keys, values = k.reshape(batch * n_kv, n_key, width), v.reshape(batch * n_kv, n_key, width)
    scores = torch.baddbmm(bias.repeat(group, 1), queries, keys.mT, alpha=1.0 / math.sqrt(width))
    weights = F.dropout(scores.softmax(dim=-1), dropout, training=dropout > 0.0)  # (B Hkv, H / Hkv T, S)
    return (weights @ values).view(batch, n_head, n_query, width)


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, dropout: float = 0.0) -> Tensor:
    """`causal_attention` by torch's fused kernels."""
    n_query, n_key = q.shape[2], k.shape[2]
    sees_all = window is None or window >= n_key
    is_causal = sees_all and n_query == n_key  # `is_causal` aligns the mask with the first key: wrong when T < S
    mask = None
    if not (is_causal or (sees_all and n_query == 1)):
        mask = visible_keys(n_query, n_key, window, q.device)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, dropout_p=dropout, enable_gqa=grouped
    )
