"""Causal self-attention: its definition, and the same by torch's kernels.

Shapes: B batch, T queries, S keys, H query heads, Hkv key/value heads (a divisor of H), D head_dim.
Query t stands at position S - T + t, so it sees the keys up to and including that one.
"""

import math
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# For fewer keys the backward pass of the CPU's flash kernel is slow in bf16: a step of 12 x 64 tokens took 67 ms with
# it, 36 ms with plain products.
_CPU_FLASH_KEYS = 192
_FLEX_QUERIES, _FLEX_HEAD_DIM = 128, 16  # the fewest that FlexAttention's kernels take


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int | None = None,
    slopes: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """(B, H, T, D), (B, Hkv, S, D), (B, Hkv, S, D) -> (B, H, T, D); query t sees keys up to S - T + t.

    With `window`, a query sees only the last `window` keys up to its own. With `slopes`, (H,), a score falls by its
    head's slope with each position between query and key (ALiBi). `dropout` acts on the weights.
    Equal to `reference_attention` when dropout is 0.
    """
    n_query, n_key = q.shape[2], k.shape[2]
    sees_all = window is None or window >= n_key
    # SDPA's `is_causal` aligns the mask with the first key: wrong when T < S.
    is_causal = sees_all and n_query == n_key and slopes is None
    if window is not None and not sees_all and slopes is None and takes_flex(q, k, dropout):
        from gpt_cli.model.window_attention import flex_window_attention  # noqa: PLC0415 - loads the compiler

        return flex_window_attention(q, k, v, window)
    mask = None
    if slopes is not None:
        hidden = ~causal_mask(n_query, n_key, window, q.device)
        mask = alibi_bias(slopes, distances(n_query, n_key, q.device)).to(q.dtype).masked_fill(hidden, -math.inf)
    elif not (is_causal or (sees_all and n_query == 1)):
        mask = causal_mask(n_query, n_key, window, q.device)
    grouped = q.shape[1] != k.shape[1]
    is_short = n_key < _CPU_FLASH_KEYS and q.device.type == "cpu"
    uses_math = is_short and v.dtype == torch.bfloat16 and torch.is_grad_enabled()
    with sdpa_kernel(SDPBackend.MATH) if uses_math else nullcontext():
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, dropout_p=dropout, enable_gqa=grouped
        )


def takes_flex(q: Tensor, k: Tensor, dropout: float) -> bool:
    """True if FlexAttention computes a window of these (B, H, T, D) queries and keys.

    Only under a compiler on a GPU: elsewhere it would materialise all scores. It does not support dropout.
    """
    compiling = torch.compiler.is_compiling() and q.device.type == "cuda"
    large = q.shape[2] >= _FLEX_QUERIES and q.shape[3] >= _FLEX_HEAD_DIM
    return compiling and large and q.shape[2] == k.shape[2] and dropout == 0.0


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, slopes: Tensor | None = None
) -> Tensor:
    """The definition (Vaswani et al., 2017, equation 1, with a causal mask), written out; shapes as above.

    softmax(q k^T / sqrt(D) - slope * distance) v, where the softmax runs over the keys that a query sees; the slopes of
    the heads are 0 but for ALiBi (Press et al., 2022, equation 1).
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # (B, H, S, D)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, T, S)
    if slopes is not None:
        scores = scores + alibi_bias(slopes, distances(q.shape[2], k.shape[2], q.device))
    scores = scores.masked_fill(~causal_mask(q.shape[2], k.shape[2], window, q.device), -math.inf)
    return scores.softmax(dim=-1) @ v


def alibi_slopes(n_head: int) -> Tensor:
    """(H,): the slope of each head, 2^(-8/H), 2^(-16/H), ..., 2^-8 (Press et al., 2022, section 3).

    Where H is no power of two: the slopes of the next smaller one, then every other one of its double, as in the
    authors' code.
    """
    power = 1 << (n_head.bit_length() - 1)
    first = 2 ** (-8 * torch.arange(1, power + 1, dtype=torch.float64) / power)
    between = 2 ** (-4 * (2 * torch.arange(n_head - power, dtype=torch.float64) + 1) / power)
    return torch.cat((first, between)).float()


def alibi_bias(slopes: Tensor, distance: Tensor) -> Tensor:
    """(H,) slopes, (..., T, S) distances of keys from queries -> (..., H, T, S): the bias of the scores."""
    return -slopes[:, None, None] * distance.unsqueeze(-3)


def distances(n_query: int, n_key: int, device: torch.device) -> Tensor:
    """(T, S): how far key s is behind query t."""
    return torch.arange(n_key - n_query, n_key, device=device)[:, None] - torch.arange(n_key, device=device)


def distances_from(start: Tensor, n_query: int, n_key: int) -> Tensor:
    """(B,) -> (B, T, S): how far key s, at position s, is behind query t of sequence b, at position start[b] + t."""
    return start[:, None, None] + distances(n_query, n_key, start.device) - (n_key - n_query)


def ragged_attention(
    q: Tensor, k: Tensor, v: Tensor, start: Tensor, *, window: int | None = None, slopes: Tensor | None = None
) -> Tensor:
    """`causal_attention` where query t of sequence b stands at position start[b] + t, and key s at position s.

    `start` is (B,); the other shapes are as above. Keys past a query's position are hidden; their values only
    have to be finite.
    """
    n_query, n_key = q.shape[2], k.shape[2]
    visible = ragged_causal_mask(start, n_query, n_key, window)
    if slopes is None:
        return masked_attention(q, k, v, visible)
    bias = alibi_bias(slopes, distances_from(start, n_query, n_key)).to(q.dtype)
    return masked_attention(q, k, v, bias.masked_fill(~visible, -math.inf))


def ragged_causal_mask(start: Tensor, n_query: int, n_key: int, window: int | None) -> Tensor:
    """(B, 1, T, S) booleans: whether query t of sequence b, at position start[b] + t, may see key s, at position s."""
    keys = torch.arange(n_key, device=start.device)
    queries = (start[:, None] + torch.arange(n_query, device=start.device))[:, None, :, None]  # (B, 1, T, 1)
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    return visible


def masked_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """(B, H, T, D), (B, Hkv, S, D) twice -> (B, H, T, D); `visible`: (B, 1, T, S) booleans, or a bias of the scores,
    (B, 1 or H, T, S)."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=q.shape[1] != k.shape[1])


def causal_mask(n_query: int, n_key: int, window: int | None, device: torch.device) -> Tensor:
    """(T, S) booleans: whether query t may see key s."""
    visible = torch.ones(n_query, n_key, dtype=torch.bool, device=device).tril(n_key - n_query)
    return visible if window is None else visible.triu(n_key - n_query - window + 1)
