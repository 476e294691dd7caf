"""Width and learning rate: how the size of activations after some steps at one rate depends on the width of a model.

A coordinate test (Yang et al., 2022, "Tensor Programs V", appendix D.1). Bounds are what the defaults hold to; a change
of initial weights or rates that is meant to transfer better may tighten them.
"""

import torch

from gpt_cli.config import ModelConfig, OptimConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.training.evaluate import cross_entropy
from gpt_cli.training.optim import Optimizer

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
    parts = {"stream": model.blocks[-1], "attention": model.blocks[0].attention, "mlp": model.blocks[0].mlp}
    given: dict[str, torch.Tensor] = {}
    for name, part in {**parts, "logits": model.head}.items():
        part.register_forward_hook(lambda _, __, output, name=name: given.update({name: output.detach()}))
    optimizer = Optimizer(model, optim)
    for step in range(STEPS):
        tokens = batch(step)
        cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step(1.0)
        optimizer.zero_grad()
    model(batch(0)[:, :-1])
    return {name: tensor.square().mean().sqrt().item() for name, tensor in given.items()}


def growth(optim: OptimConfig) -> dict[str, float]:
    """How much larger each part's output is in the widest of the models than in the narrowest, or the inverse."""
    sizes = [sizes_after_training(width, optim) for width in WIDTHS]
    return {name: max(s[name] for s in sizes) / min(s[name] for s in sizes) for name in sizes[0]}


def test_under_muon_four_times_the_width_makes_the_stream_at_most_twice_as_large():
    grown = growth(OptimConfig())
    assert grown["stream"] < 2
    assert max(grown.values()) < 4


def test_under_adamw_it_makes_it_over_four_times_as_large_so_each_width_wants_a_rate_of_its_own():
    assert growth(OptimConfig(name="adamw", lr=2e-3))["stream"] > 4
