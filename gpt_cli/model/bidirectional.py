"""Bidirectional attention: every token sees all tokens of its text.

Shapes: B batch, T tokens, H query heads, Hkv key/value heads, D head_dim.
"""

from torch import Tensor
from torch.nn import functional as F

from gpt_cli.model.kv_cache import KVCache


class BidirectionalAttention(KVCache):
    """Passed as a cache, but stores nothing: it masks the padding.

    `visible`: (B, T) booleans, true for at least one token of each text.
    """

    def __init__(self, visible: Tensor, dropout: float = 0.0) -> None:
        self.visible, self.dropout = visible[:, None, None, :], dropout  # (B, 1, 1, T)
        self.length = 0

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, slopes: Tensor | None = None
    ) -> Tensor:
        """(B, H, T, D), (B, Hkv, T, D) twice -> (B, H, T, D)."""
        assert window is None, "the schema refuses it"
        assert slopes is None, "the schema refuses it"
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=self.visible, dropout_p=self.dropout, enable_gqa=grouped
        )

    def advance(self, n_token: int) -> None:
        """Nothing to do."""
