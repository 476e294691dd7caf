"""Initial weights: heads of the first blocks attend to the tokens just before, and all else is as it would be."""

from typing import Any

import pytest
import torch

from gpt_cli.config import ModelConfig, parse_config
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.model.layers import Attention
from gpt_cli.model.previous_token_init import BLOCKS, HEADS

VOCAB = 40
SHAPES: list[dict[str, Any]] = [
    {"n_layer": 3, "n_head": 4, "n_embd": 128},
    {"n_layer": 1, "n_head": 1, "n_embd": 32},
    {"n_layer": 2, "n_head": 6, "n_kv_head": 2, "n_embd": 384},
    {"n_layer": 2, "n_head": 8, "n_kv_head": 1, "n_embd": 128, "norm": "layernorm", "bias": True},
    {"n_layer": 2, "n_head": 3, "n_embd": 192, "embedding_norm": True, "zero_init": False},
    {"n_layer": 2, "n_head": 2, "n_embd": 64, "init_std": 0.2, "rope_theta": 1e6, "rope_rounding": "power"},
]


def make(**options: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(**{"context_length": 24, "previous_token_init": True, **options}), VOCAB)


def attention_weights(attention: Attention, x: torch.Tensor) -> torch.Tensor:
    """(B, T, C), normalised -> (B, H, T, T): the softmax by its definition."""
    heads = attention.qkv(x).view(*x.shape[:2], -1, attention.head_dim).transpose(1, 2)
    q, k, _ = heads.split(attention.heads, dim=1)
    q, k = attention.rotary(attention.q_norm(q), 0), attention.rotary(attention.k_norm(k), 0)
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(-2, -1) / attention.head_dim**0.5
    return scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf).softmax(-1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_head_i_of_the_first_blocks_attends_most_to_the_token_i_plus_1_back_whatever_the_tokens(shape: dict[str, Any]):
    model = make(**shape)
    x = model.embedding(torch.randint(VOCAB, (2, 24)), 0)
    for block in model.blocks[:BLOCKS]:
        weights = attention_weights(block.attention, block.norm1(x))
        for head in range(min(HEADS, model.config.n_head)):
            offset = head + 1
            queries = torch.arange(offset, 24)
            assert (weights[:, head, queries].argmax(-1) == queries - offset).all()
            torch.testing.assert_close(weights[0, head], weights[1, head], rtol=0.0, atol=0.1)  # of two texts
        x = block(x, None)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_only_queries_and_keys_of_these_heads_and_one_channel_of_the_embedding_differ_from_the_usual_weights(
    shape: dict[str, Any],
):
    model, usual = make(**shape), make(**{**shape, "previous_token_init": False})
    before = dict(usual.named_parameters())
    for name, parameter in model.named_parameters():
        is_equal = parameter == before[name]
        if name == "embedding.tokens.weight":
            assert is_equal[:, 1:].all()
        elif name in [f"blocks.{layer}.attention.qkv.weight" for layer in range(BLOCKS)]:
            config = model.config
            is_equal = is_equal.view(-1, config.head_dim, config.n_embd)
            assert is_equal[min(HEADS, config.n_head) : config.n_head].all()  # the other queries
            assert is_equal[config.n_head + config.kv_heads :].all()  # the values
        else:
            assert is_equal.all(), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_query_and_key_learns(shape: dict[str, Any]):
    model = make(**shape)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.out.weight.normal_()
    model(torch.randint(VOCAB, (4, 24))).square().sum().backward()
    for block in model.blocks:
        heads = block.attention.qkv.weight.grad.view(-1, model.config.head_dim, model.config.n_embd)
        assert heads.abs().amax(-1).all()  # each row has a gradient


@pytest.mark.parametrize(
    "option",
    [
        "position=learned",
        "qk_norm=false",
        "norm_position=post",
        "causal=false",
        "tie_embeddings=true",
        "n_head=32",
    ],
)
def test_models_for_which_it_is_not_made_are_refused_by_the_option_that_is_missing(option: str):
    overrides = ["model.previous_token_init=true", f"model.{option}"]
    with pytest.raises(RequestError, match=rf"previous_token_init \(true\) needs .*{option.partition('=')[0]}"):
        parse_config("", "test", overrides)


@pytest.mark.parametrize("context_length", [2, 3, 5])
def test_a_context_shorter_than_the_heads_look_back_is_no_error(context_length: int):
    model = make(n_layer=2, n_head=4, n_embd=32, context_length=context_length)
    assert model(torch.zeros(1, context_length, dtype=torch.int64)).isfinite().all()
