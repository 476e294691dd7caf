"""The network, and nothing else.

Shapes: B batch, T tokens, C n_embd, V vocabulary.
Options are chosen when a module is built, not in its forward pass.
"""

import math

import torch
from torch import Tensor, nn

from gpt_cli.config import ModelConfig
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.model.layers import Attention, SoftCap, make_mlp, make_norm
from gpt_cli.model.lm_head import LMHead
from gpt_cli.model.position import gather_positions, sinusoids
from gpt_cli.model.previous_token_init import init_previous_token_heads

BASE_WIDTH = 128
"""The n_embd at which initial weights and learning rates are those of the config; at others they are scaled."""


class GPT(nn.Module):
    """A decoder-only transformer: tokens in, logits of the next token out."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        block = PreNormBlock if config.norm_position == "pre" else PostNormBlock
        self.embedding = Embedding(config, vocab_size)
        self.blocks = nn.ModuleList(block(config, layer) for layer in range(config.n_layer))
        self.norm = make_norm(config) if config.norm_position == "pre" else nn.Identity()
        self.head = LMHead(config.n_embd, vocab_size)
        self.softcap = nn.Identity() if config.logit_softcap is None else SoftCap(config.logit_softcap)
        if config.tie_embeddings:
            self.head.weight = self.embedding.tokens.weight
        init_weights(self)

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T) -> (B, T, V). With a cache, `tokens` continue the sequences in it.

        Raises ValueError when more than `context_length` positions would be needed.
        """
        return self.softcap(self.head(self.features(tokens, cache)))

    def features(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T) -> (B, T, C): the input of the head; otherwise like `forward`."""
        end = tokens.shape[1] + (0 if cache is None else cache.length)
        if end > self.config.context_length:
            raise ValueError(f"{end} tokens do not fit in a context of {self.config.context_length}")
        x = self.embedding(tokens, 0 if cache is None else cache.start)  # (B, T, C)
        for block in self.blocks:
            x = block(x, cache)
        if cache is not None:
            cache.advance(tokens.shape[1])
        return self.norm(x)


class Embedding(nn.Module):
    """Token embeddings, plus position embeddings if the model adds them."""

    positions: Tensor | None

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.n_embd)
        self.scale = 1.0
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        if config.position == "learned":
            self.positions = nn.Parameter(torch.empty(config.context_length, config.n_embd))
        elif config.position == "sinusoidal":
            # Vaswani et al. (2017), section 3.4: the scale of the sinusoids is 1.
            self.scale = math.sqrt(config.n_embd)
            self.register_buffer("positions", sinusoids(config.context_length, config.n_embd), persistent=False)
        else:
            self.positions = None

    def forward(self, tokens: Tensor, start: int | Tensor) -> Tensor:
        """(B, T) tokens from position `start` (see `gather_positions`) on -> (B, T, C)."""
        x = self.tokens(tokens) * self.scale
        if self.positions is not None:
            x = x + gather_positions(self.positions, start, tokens.shape[1])
        return self.dropout(self.norm(x))


class Block(nn.Module):
    """Attention and an MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.norm1, self.attention = make_norm(config), Attention(config, layer)
        self.norm2, self.mlp = make_norm(config), make_mlp(config)
        self.dropout = nn.Dropout(config.dropout)


class PreNormBlock(Block):
    """Normalise the input of each sublayer (GPT-2)."""

    def forward(self, x: Tensor, cache: KVCache | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = x + self.dropout(self.attention(self.norm1(x), cache))
        return x + self.dropout(self.mlp(self.norm2(x)))


class PostNormBlock(Block):
    """Normalise the sum after each sublayer (Vaswani et al., 2017)."""

    def forward(self, x: Tensor, cache: KVCache | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = self.norm1(x + self.dropout(self.attention(x, cache)))
        return self.norm2(x + self.dropout(self.mlp(x)))


@torch.no_grad()
def init_weights(model: GPT) -> None:
    """Draw the initial weights, as in GPT-2, from the global generator of their device.

    Matrices and embeddings are normal with `init_std`; the output projections of both sublayers get it over
    sqrt(2 n_layer), or zero under `zero_init`, as are the gates of heads then; biases are zero, gains one. Under
    `previous_token_init` queries and keys of the first blocks, and a channel of the embedding, are set.
    """
    config = model.config
    # Without init_std, the scale of a matrix's output does not depend on the width (Yang et al., 2022, table 8).
    matrix_std = config.init_std or 0.02 * math.sqrt(BASE_WIDTH / config.n_embd)
    for name, parameter in model.named_parameters():
        is_output = name.endswith(("attention.out.weight", "mlp.down.weight"))
        if config.zero_init and (is_output or name.endswith("head_gate.weight")):
            nn.init.zeros_(parameter)
        elif name.startswith("embedding.") and parameter.dim() == 2:
            nn.init.normal_(parameter, std=config.init_std or 0.02)
        elif parameter.dim() == 2:
            nn.init.normal_(parameter, std=matrix_std / math.sqrt(2 * config.n_layer) if is_output else matrix_std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    if config.has_previous_token_init:
        init_previous_token_heads(model, config.init_std or 0.02, matrix_std)
