"""Initial weights with which heads of the first blocks attend to the tokens just before, as those of trained models do.

Training has to find such previous-token heads first (Olsson et al., 2022, "In-context Learning and Induction Heads");
vision transformers, too, learn sooner when their heads begin as convolutions (Zheng et al., 2024, "Structured
Initialization for Attention in Vision Transformers"). These are weights like any others, which training may change.

Shapes: V vocabulary, C n_embd, D head_dim.
"""

import math
from typing import TYPE_CHECKING, cast

import torch

if TYPE_CHECKING:
    from gpt_cli.model.gpt import GPT, Block

BLOCKS = 2
HEADS = 4  # of each block: queries of the others begin as usual
_OTHERS = 0.3  # of their usual scale: the other weights, which at zero would have no gradient


@torch.no_grad()
def init_previous_token_heads(model: "GPT", embedding_std: float, matrix_std: float) -> None:
    """Have head i, from 0 on, of the first blocks of `model` attend to the token i + 1 back; in place, without drawing.

    `model.config.has_previous_token_init` is true: so scores depend on distances.

    `embedding_std`, `matrix_std`: standard deviations of the other embeddings and matrices.

    Channel 0 of the token embeddings is the same for all tokens, with the energy of a whole embedding. Queries and
    keys made of little else are the same at all positions but for their rotation, and alike at one distance.
    """
    config = model.config
    scale = math.sqrt(config.n_embd)  # of a channel that stands for C
    embedding = model.embedding.tokens.weight  # (V, C)
    embedding[:, 0] = embedding_std * scale
    n_head = min(HEADS, config.n_head, config.context_length - 1)
    group = config.n_head // config.kv_heads
    # The quarter of the rotary pairs that rotates fastest tells neighbouring positions apart.
    pairs = config.head_dim // 2
    fast = [float(channel % pairs < config.head_dim // 8) for channel in range(config.head_dim)]
    is_fast = torch.tensor(fast, device=embedding.device)
    for block in model.blocks[:BLOCKS]:
        attention = cast("Block", block).attention
        rotated = attention.rotary(is_fast.expand(1, 1, n_head + 1, -1), 0)[0, 0]  # (n_head + 1, D)
        heads = attention.qkv.weight.view(-1, config.head_dim, config.n_embd)
        queries, keys, _ = heads.split(attention.heads)
        # Keys are rotated n_head positions ahead, queries less so by as many as they look back.
        directions = [(rows, rotated[n_head]) for rows in keys[: math.ceil(n_head / group)]]
        directions += [(queries[head], rotated[n_head - 1 - head]) for head in range(n_head)]
        for rows, direction in directions:
            rows.mul_(_OTHERS)
            rows[:, 0] = matrix_std * scale * direction
