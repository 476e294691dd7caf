"""Loss and gradients of a model whose every parameter matters, by torch's autograd."""

import torch

from gpt_cli.config import ModelConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.training.evaluate import cross_entropy

SHAPE = {"n_layer": 2, "n_embd": 48, "n_head": 4, "context_length": 80}


def make_model(options: dict[str, object], vocab_size: int, seed: int = 0) -> GPT:
    """A model whose every parameter matters: none is zero or one."""
    torch.manual_seed(seed)
    model = GPT(ModelConfig(**{**SHAPE, **options}), vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def by_autograd(model: GPT, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    loss = cross_entropy(model(inputs), targets)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return loss.item(), gradients
