"""Ingredients that the trainer does not have, for bench/ablations.py to measure: a model of each is trained by torch.

As a program this is the trainer of a sweep's runs, of which those that are named after an ingredient have it.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from gpt_cli.config import Config, ModelConfig
from gpt_cli.model.attention import causal_attention, causal_mask
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.model.layers import Attention
from gpt_cli.search.sweep import worker
from gpt_cli.training import state


class EmbeddingResidualGPT(GPT):
    """Block l reads a_l x + b_l x0, with x0 the embedding; a is 1 and b is 0 at first (Jordan et al., 2024)."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        self.stream_scale = nn.Parameter(torch.ones(config.n_layer))
        self.embedding_scale = nn.Parameter(torch.zeros(config.n_layer))

    def features(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T) -> (B, T, C): what the head reads; without a cache."""
        first = x = self.embedding(tokens, 0)
        for block, a, b in zip(self.blocks, self.stream_scale, self.embedding_scale, strict=True):
            x = block(a * x + b * first, cache)
        return self.norm(x)


class VariantAttention(Attention):
    """Attention in parts that a variant overrides; without a cache and without dropout of the weights."""

    def forward(self, x: Tensor, cache: KVCache | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        batch, n_token, _ = x.shape
        heads = self.qkv(x).view(batch, n_token, -1, self.head_dim).transpose(1, 2)
        q, k, v = heads.split(self.heads, dim=1)
        y = self.attend(self.rotary(self.q_norm(q), 0), self.rotary(self.k_norm(k), 0), v)  # (B, H, T, D)
        return self.out(y.transpose(1, 2).reshape(batch, n_token, -1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, H, T, D), (B, Hkv, T, D) twice -> (B, H, T, D)."""
        return causal_attention(q, k, v, window=self.window)


class VariantGPT(GPT):
    """A model each of whose blocks has the attention that `make_attention` returns, with the usual first weights."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        for layer, block in enumerate(self.blocks):
            attention = self.make_attention(config, layer)
            attention.load_state_dict(block.attention.state_dict(), strict=False)  # what it adds stays as it is
            block.attention = attention

    def make_attention(self, config: ModelConfig, layer: int) -> Attention:
        raise NotImplementedError


class ValueResidualGPT(VariantGPT):
    """The values of layer l > 0 are (1 - a_l) v_l + a_l v_0, with a at 1/2 at first (Zhou et al., 2024, equation 7)."""

    def make_attention(self, config: ModelConfig, layer: int) -> Attention:
        self.first: list[Tensor] = [] if layer == 0 else self.first
        return MixedAttention(config, layer, self.first)


class MixedAttention(VariantAttention):
    """Attention whose values are mixed with those of the first layer, which it leaves in `first`."""

    def __init__(self, config: ModelConfig, layer: int, first: list[Tensor]) -> None:
        super().__init__(config, layer)
        self.first = first
        if layer:
            self.share = nn.Parameter(torch.full((1,), 0.5))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, H, T, D), (B, Hkv, T, D) twice -> (B, H, T, D)."""
        if self.layer:
            v = v.lerp(self.first[0], self.share.to(v.dtype))  # bf16 under autocast
        else:
            self.first[:] = [v]
        return super().attend(q, k, v)


class AlternatingWindowsGPT(VariantGPT):
    """Every other layer, the first among them, sees a quarter of the context (Gemma Team, 2024, section 2)."""

    def make_attention(self, config: ModelConfig, layer: int) -> Attention:
        narrow = config.model_copy(update={"window": config.context_length // 4})
        return VariantAttention(config if layer % 2 else narrow, layer)


class SinkGPT(VariantGPT):
    """Each head may look away: a learned score, 0 at first, of a key that has no value (Xiao et al., 2023; gpt-oss)."""

    def make_attention(self, config: ModelConfig, layer: int) -> Attention:
        return SinkAttention(config, layer)


class SinkAttention(VariantAttention):
    """Attention whose softmax also runs over a score of the head."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.sink = nn.Parameter(torch.zeros(config.n_head))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, H, T, D), (B, Hkv, T, D) twice -> (B, H, T, D)."""
        group, n_token = q.shape[1] // k.shape[1], q.shape[2]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = (q @ k.transpose(-2, -1)).float() / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~causal_mask(n_token, n_token, self.window, q.device), -math.inf)
        sinks = self.sink.float()[:, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1].to(v.dtype) @ v


SHORTCUTS: dict[str, type[GPT]] = {"value residual": ValueResidualGPT, "embedding residual": EmbeddingResidualGPT}
ATTENTION: dict[str, type[GPT]] = {
    "alternating windows": AlternatingWindowsGPT,
    "attention sinks": SinkGPT,
}
MODELS = SHORTCUTS | ATTENTION


@contextmanager
def named_in(run: str) -> Iterator[None]:
    """Meanwhile, what is trained is the model that the name `run` has in it, if there is one."""
    theirs = state.make_model
    for name in (name for name in MODELS if name in run):
        state.make_model = partial(_make_model, MODELS[name])
    try:
        yield
    finally:
        state.make_model = theirs


def _make_model(kind: type[GPT], config: Config, vocab_size: int) -> GPT:
    return kind(config.model, vocab_size)


if __name__ == "__main__":
    sys.exit(worker.main(named_in))
