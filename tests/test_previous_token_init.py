"""Initial weights: heads of the first blocks attend to the tokens just before, and all else is as it would be."""

from typing import Any

import pytest
import torch

from gpt_cli.config import ModelConfig, load_config
from gpt_cli.model.gpt import GPT
from gpt_cli.model.layers import Attention
from gpt_cli.model.previous_token_init import BLOCKS, HEADS

VOCAB = 40
SHAPES: list[dict[str, Any]] = [
    {"n_layer": 3, "n_head": 4, "n_embd": 128},
    {"n_layer": 1, "n_head": 1, "n_embd": 8},
    {"n_layer": 2, "n_head": 6, "n_kv_head": 2, "n_embd": 384},
    {"n_layer": 2, "n_head": 8, "n_kv_head": 1, "n_embd": 128, "norm": "layernorm", "bias": True},
    {"n_layer": 2, "n_head": 3, "n_embd": 192, "tie_embeddings": True, "embedding_norm": True, "zero_init": False},
    {"n_layer": 2, "n_head": 2, "n_embd": 64, "init_std": 0.2, "rope_theta": 1e6, "rope_rounding": "power"},
]


def make(seed: int = 0, **options: Any) -> GPT:
    torch.manual_seed(seed)
    return GPT(ModelConfig(**{"context_length": 24, **options}), VOCAB)


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
            torch.testing.assert_close(weights[0, head], weights[1, head], rtol=0.0, atol=1e-3)  # of two texts
        x = block(x, None)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_only_queries_and_keys_of_these_heads_and_one_channel_of_the_embedding_differ_from_the_usual_weights(
    shape: dict[str, Any],
):
    model, usual = make(**shape), make(**shape, previous_token_init=False)
    before = dict(usual.named_parameters())
    for name, parameter in model.named_parameters():
        is_equal = parameter == before[name]
        if name in ("embedding.tokens.weight", "head.weight") and not is_equal.all():
            assert is_equal[:, 1:].all()
        elif name in [f"blocks.{layer}.attention.qkv.weight" for layer in range(BLOCKS)]:
            config = model.config
            is_equal = is_equal.view(-1, config.head_dim, config.n_embd)
            assert is_equal[min(HEADS, config.n_head) : config.n_head].all()  # the other queries
            assert is_equal[config.n_head + config.kv_heads :].all()  # the values
        else:
            assert is_equal.all(), name


@pytest.mark.parametrize(
    "options",
    [{"position": "learned"}, {"position": "alibi"}, {"qk_norm": False}, {"norm_position": "post"}, {"causal": False}],
    ids=str,
)
def test_models_for_which_it_is_not_made_begin_with_the_usual_weights(options: dict[str, Any]):
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, **options}
    usual = make(**shape, previous_token_init=False).state_dict()
    assert all(torch.equal(tensor, usual[name]) for name, tensor in make(**shape).state_dict().items())


@pytest.mark.parametrize("context_length", [2, 3, 5])
def test_a_context_shorter_than_the_heads_look_back_is_no_error(context_length: int):
    model = make(n_layer=2, n_head=4, n_embd=32, context_length=context_length)
    assert model(torch.zeros(1, context_length, dtype=torch.int64)).isfinite().all()


def test_the_config_of_an_older_run_means_the_usual_weights(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "run.json").write_text("{}")
    (directory / "config.yaml").write_text("model: {n_layer: 2}\n")
    assert not load_config(directory / "config.yaml").model.previous_token_init
    (tmp_path / "own.yaml").write_text("model: {n_layer: 2}\n")
    assert load_config(tmp_path / "own.yaml").model.previous_token_init
