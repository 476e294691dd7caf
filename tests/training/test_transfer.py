"""Width and learning rate: how the size of activations after some steps at one rate depends on the width of a model.

A coordinate test (Yang et al., 2022, "Tensor Programs V", appendix D.1). Bounds are what the defaults hold to; a change
of initial weights or rates that is meant to transfer better may tighten them.
"""

import pytest
import torch

from gpt_cli.config import ModelConfig, OptimConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.training.evaluate import cross_entropy
from gpt_cli.training.optim import MuonAdamW

WIDTHS = (64, 128, 256)
STEPS = 8
V, B, T = 40, 8, 32


def batch(step: int) -> torch.Tensor:
    """(B, T + 1): counting up from anywhere, which can be learned."""
    start = torch.randint(V, (B, 1), generator=torch.Generator().manual_seed(step))
    return (start + torch.arange(T + 1)) % V


def sizes_after_training(width: int, optim: OptimConfig) -> dict[str, float]:
    """Root mean squares of what the parts of a model give, as changed by STEPS updates."""
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=2, n_head=width // 32, n_embd=width, context_length=T), V)
    modules = {"stream": model.blocks[-1], "attention": model.blocks[0].attention, "mlp": model.blocks[0].mlp}
    outputs: dict[str, torch.Tensor] = {}
    for name, module in {**modules, "logits": model.head}.items():
        module.register_forward_hook(lambda _, __, output, name=name: outputs.update({name: output.detach()}))
    optimizer = MuonAdamW(model, optim)
    for step in range(STEPS):
        tokens = batch(step)
        cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step(1.0)
        optimizer.zero_grad()
    model(batch(0)[:, :-1])
    return {name: tensor.square().mean().sqrt().item() for name, tensor in outputs.items()}


def growth(optim: OptimConfig) -> dict[str, float]:
    """How much larger each part's output is in the widest of the models than in the narrowest, or the inverse."""
    sizes = [sizes_after_training(width, optim) for width in WIDTHS]
    return {name: max(s[name] for s in sizes) / min(s[name] for s in sizes) for name in sizes[0]}


def test_under_muon_four_times_the_width_makes_nothing_in_a_model_twice_as_large():
    assert max(growth(OptimConfig()).values()) < 2


def test_under_adamw_it_makes_it_over_four_times_as_large_so_each_width_wants_a_rate_of_its_own():
    assert growth(OptimConfig(name="adamw", lr=2e-3))["stream"] > 4


def test_initial_matrices_multiply_by_the_same_at_any_width_and_an_init_std_is_what_it_says():
    for width in (32, 128, 512):
        torch.manual_seed(0)
        matrix = GPT(ModelConfig(n_layer=1, n_embd=width), V).blocks[0].attention.qkv.weight
        gain = (matrix @ torch.randn(width, 1000)).square().mean().sqrt().item()
        assert gain == pytest.approx(0.02 * 128**0.5, rel=0.1)
        stated = GPT(ModelConfig(n_layer=1, n_embd=width, init_std=0.05), V)
        assert {
            name: round(p.std().item(), 2) for name, p in stated.named_parameters() if "qkv" in name or name[0] == "e"
        } == {
            "embedding.tokens.weight": 0.05,
            "blocks.0.attention.qkv.weight": 0.05,
        }


def test_the_rate_of_an_untied_head_falls_with_the_width_and_that_of_a_tied_one_is_the_embeddings():
    for width, tied in ((64, False), (256, False), (256, True)):
        model = GPT(ModelConfig(n_layer=1, n_embd=width, n_head=2, tie_embeddings=tied), V)
        optimizer = MuonAdamW(model, OptimConfig(weight_decay=0.0, eps=1e-12))
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step(1.0)
        moved = {name: (before[name] - p).mean().item() for name, p in model.named_parameters()}
        assert moved["embedding.tokens.weight"] == pytest.approx(0.005, rel=0.01)
        assert tied or moved["head.weight"] == pytest.approx(0.005 * min(1, 128 / width), rel=0.01)
