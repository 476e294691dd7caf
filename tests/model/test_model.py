"""The network: its size, its blindness to the future, its cache, its beginning."""

import math
from itertools import product

import pytest
import torch

from gpt_cli.capabilities import KV_CACHE
from gpt_cli.config import ModelConfig, load_config
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.model.position import Rotary, rotary_frequencies, sinusoids
from gpt_cli.model.sizing import build_on_meta, flops_per_token, num_parameters, parameter_table
from gpt_cli.training.evaluate import cross_entropy
from tests.support.command import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SMALL = {"n_layer": 2, "n_head": 4, "n_embd": 32, "context_length": 12, "zero_init": False, "init_std": 0.2}
OPTIONS = [
    {"position": position, "norm": norm, "norm_position": norm_position}
    for position, norm, norm_position in product(
        ("learned", "sinusoidal", "rope", "alibi", "none"), ("layernorm", "rmsnorm"), ("pre", "post")
    )
] + [
    {"mlp": "relu", "bias": True, "norm": "layernorm"},
    {"mlp": "gelu", "tie_embeddings": True},
    {"mlp": "relu2", "qk_norm": False},
    {"n_kv_head": 2},
    {"n_kv_head": 1, "window": 3},
    {"window": 5, "position": "learned"},
    {"window": 5, "position": "alibi", "n_head": 2, "n_kv_head": 1},
    {"logit_softcap": 5.0},
    {"norm_gain": False, "embedding_norm": True},
    {"head_gate": True, "n_kv_head": 2},
]
each_option = pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))


def make(options: dict[str, object], vocab_size: int = 17) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(**{**SMALL, **options}), vocab_size).double().eval()


def random_tokens(batch: int = 2, length: int = 12, vocab_size: int = 17) -> torch.Tensor:
    return torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(1))


def test_gpt2_small_has_124439808_parameters():
    gpt2 = ModelConfig(
        n_layer=12, n_head=12, n_embd=768, context_length=1024, position="learned", norm="layernorm", mlp="gelu",
        qk_norm=False, bias=True, tie_embeddings=True,
    )  # fmt: skip
    assert num_parameters(gpt2, 50257) == 124_439_808


@each_option
def test_the_future_has_exactly_zero_gradient_at_every_position(options):
    model = make(options)
    x = model.embedding.tokens(random_tokens(batch=1)).detach().requires_grad_()
    model.embedding.tokens.forward = lambda _: x  # the gradient to what was read at each position
    logits = model(torch.zeros(1, 12, dtype=torch.long))
    for t in range(12):
        (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), x, retain_graph=True)
        assert not gradient[0, t + 1 :].any()
        assert gradient[0, t].any()


@each_option
def test_cached_logits_equal_uncached_ones_however_the_text_is_cut(options):
    model, tokens = make(options), random_tokens()
    expected = model(tokens)
    if (reason := KV_CACHE.refusal(model.config)) is not None:
        with pytest.raises(ValueError, match=reason):
            KVCache(model.config, batch=2)
        return
    for cuts in ([12], [1] * 12, [5, 1, 1, 5], [1, 11]):
        cache = KVCache(model.config, batch=2, dtype=torch.float64)
        chunks = [model(chunk, cache) for chunk in tokens.split(cuts, dim=1)]
        torch.testing.assert_close(torch.cat(chunks, dim=1), expected)
        assert cache.length == 12


def test_a_cache_prefilled_once_and_expanded_equals_one_filled_by_each_sequence():
    model, prompt = make({}), random_tokens(batch=1, length=5)
    cache = KVCache(model.config, batch=1, dtype=torch.float64)
    model(prompt, cache)
    cache.reorder([0, 0, 0])
    following = random_tokens(batch=3, length=2)
    expected = model(torch.cat((prompt.expand(3, -1), following), dim=1))[:, 5:]
    torch.testing.assert_close(model(following, cache), expected)


def first_loss(config: ModelConfig) -> float:
    """The loss that training would start from, on random tokens of 65 kinds, in nats."""
    torch.manual_seed(0)
    model = GPT(config, 65).eval()
    tokens = random_tokens(128, 12, 65)
    return cross_entropy(model(tokens), tokens.flip(0)).item()


@each_option
def test_the_loss_at_initialisation_is_that_of_guessing(options):
    config = ModelConfig(**{**SMALL, **options, "init_std": 0.02})
    assert not config.zero_init
    assert first_loss(config) == pytest.approx(math.log(65), rel=0.02)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_loss_at_initialisation_of_each_shipped_config_is_that_of_guessing(path):
    config = load_config(path).model
    if path.stem == "gpt2_124m":  # the same layout and init, in a size that a test can hold
        config = config.model_copy(update={"n_layer": 2, "n_head": 4, "n_embd": 64, "context_length": 64})
    loss = first_loss(config)
    if path.stem == "vaswani_decoder":  # the paper's init: a tied head of rows of length one, with large logits
        assert math.log(65) < loss < 1.5 * math.log(65)
    else:  # logits of standard deviation 0.02 sqrt(n_embd) cost half their variance: 0.08 nats (1.8 %) at width 384
        assert loss == pytest.approx(math.log(65), rel=0.025)


@each_option
def test_the_shapes_counted_without_memory_are_those_of_the_model(options):
    model = make(options)
    assert sum(n for _, _, n in parameter_table(model.config, 17)) == sum(p.numel() for p in model.parameters())
    expected = build_on_meta(model.config, 17).state_dict()
    assert {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in expected.items()}


def test_zero_initialised_blocks_are_the_identity():
    model = make({"zero_init": True})
    x = torch.randn(2, 12, 32, dtype=torch.float64)
    assert torch.equal(model.blocks[0](x, None), x)


def test_output_projections_start_smaller_by_the_square_root_of_the_number_of_sublayers():
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=8, n_embd=256, zero_init=False, init_std=0.02), 65)
    block = model.blocks[3]
    assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.attention.out.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert block.mlp.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)


def test_softcapped_logits_stay_inside_the_cap():
    model = make({"logit_softcap": 0.5, "init_std": 2.0})
    assert model(random_tokens()).abs().max() <= 0.5


def test_rotary_scores_depend_on_the_distance_alone():
    rotary = Rotary(64, rotary_frequencies(ModelConfig(n_embd=8, n_head=1))).double()
    q, k = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 1, 8, dtype=torch.float64)
    scores = [(rotary(q, s + 7) * rotary(k, s)).sum().item() for s in range(0, 50, 7)]
    rounding = 2 * 56 * 2.0**-24 * (q.norm() * k.norm()).item()  # of two angles of up to 56 radians, in fp32
    assert scores == pytest.approx([scores[0]] * len(scores), rel=0, abs=rounding)
    assert abs((rotary(q, 9) * rotary(k, 1)).sum().item() - scores[0]) > 100 * rounding


def test_sinusoids_are_those_of_the_paper():
    table = sinusoids(50, 16)
    for position, i in product((0, 3, 49), range(8)):
        angle = position / 10_000 ** (2 * i / 16)
        assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
        assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_more_tokens_than_the_context_are_refused_with_and_without_a_cache():
    model = make({})
    with pytest.raises(ValueError, match="13 tokens do not fit"):
        model(random_tokens(length=13))
    cache = KVCache(model.config, batch=2, dtype=torch.float64)
    model(random_tokens(length=10), cache)
    with pytest.raises(ValueError, match="13 tokens do not fit"):
        model(random_tokens(length=3), cache)


def test_flops_per_token_of_gpt2_small_are_the_papers():
    gpt2 = ModelConfig(
        n_layer=12, n_head=12, n_embd=768, context_length=1024, position="learned", norm="layernorm", mlp="gelu",
        qk_norm=False, bias=False, tie_embeddings=True,
    )  # fmt: skip
    # 6 N + 12 L C T, N without the position embedding: what PaLM's appendix B counts
    n = num_parameters(gpt2, 50304) - 1024 * 768
    assert flops_per_token(gpt2, 50304) == 6 * n + 12 * 12 * 768 * 1024 == pytest.approx(854.6e6, rel=1e-3)


def test_a_gated_head_is_the_plain_one_times_twice_the_sigmoid_of_its_gate():
    gated, plain = (make({"head_gate": on}).blocks[0].attention for on in (True, False))
    plain.load_state_dict(gated.state_dict(), strict=False)
    for attention in (gated, plain):
        torch.nn.init.eye_(attention.out.weight)  # so that the heads are what comes out
    x = torch.randn(2, 5, gated.out.in_features, dtype=torch.double)
    heads = plain(x, None).unflatten(-1, (-1, gated.head_dim))  # (B, T, H, D)
    gate = 2 / (1 + torch.exp(-(x @ gated.head_gate.weight.mT)))  # (B, T, H)
    torch.testing.assert_close(gated(x, None), (heads * gate[..., None]).flatten(-2))


def test_gates_begin_open():
    torch.manual_seed(0)
    model = GPT(ModelConfig(**{**SMALL, "zero_init": True, "head_gate": True}), 17)
    assert all(not block.attention.head_gate.weight.any() for block in model.blocks)
