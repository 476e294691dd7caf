"""Two ingredients that the trainer does not have, for bench/ablations.py to measure: shortcuts from the first layer.

Both are mixed by learned scalars, one or two for each layer. A model with them is trained by torch. As a program this
is the trainer of a sweep's runs, of which those that are named after an ingredient have it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from gpt_cli.config import Config, ModelConfig
from gpt_cli.model.attention import causal_attention
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


class ValueResidualGPT(GPT):
    """The values of layer l > 0 are (1 - a_l) v_l + a_l v_0, with a at 1/2 at first (Zhou et al., 2024, equation 7)."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        first: list[Tensor] = []
        for layer, block in enumerate(self.blocks):
            mixed = MixedAttention(config, layer, first)
            mixed.load_state_dict(block.attention.state_dict(), strict=False)  # the scalar stays what it is
            block.attention = mixed


class MixedAttention(Attention):
    """Attention whose values are mixed with those of the first layer, which it leaves in `first`."""

    def __init__(self, config: ModelConfig, layer: int, first: list[Tensor]) -> None:
        super().__init__(config, layer)
        self.first = first
        if layer:
            self.share = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, x: Tensor, cache: KVCache | None) -> Tensor:
        """(B, T, C) -> (B, T, C), without a cache and without dropout of the weights."""
        batch, n_token, _ = x.shape
        heads = self.qkv(x).view(batch, n_token, -1, self.head_dim).transpose(1, 2)
        q, k, v = heads.split(self.heads, dim=1)
        q, k = self.rotary(self.q_norm(q), 0), self.rotary(self.k_norm(k), 0)
        if self.layer:
            v = v.lerp(self.first[0], self.share.to(v.dtype))  # bf16 under autocast
        else:
            self.first[:] = [v]
        y = causal_attention(q, k, v, window=self.window)
        return self.out(y.transpose(1, 2).reshape(batch, n_token, -1))


MODELS: dict[str, type[GPT]] = {"value residual": ValueResidualGPT, "embedding residual": EmbeddingResidualGPT}


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
