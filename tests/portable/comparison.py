"""The training drivers of the C engines beside torch, and the models and prompts that both drivers get."""

from typing import Any

import numpy as np
import torch

from gpt_cli.training.muon import newton_schulz_batched
from tests.portable.engines import answers, train_input
from tests.support.autograd_reference import by_autograd, make_model

VOCAB_SIZE = 61
MODELS: dict[str, dict[str, Any]] = {
    "swiglu": {"n_kv_head": 2, "window": 17, "n_layer": 2, "n_embd": 96, "n_head": 4, "context_length": 40},
    "gelu": {
        "position": "learned", "norm": "layernorm", "mlp": "gelu", "qk_norm": False, "bias": True,
        "tie_embeddings": True, "logit_softcap": 5.0, "n_layer": 1, "n_embd": 40, "n_head": 2, "context_length": 40,
    },
}  # fmt: skip


def prompts(n: int) -> list[list[int]]:
    """Of many lengths: more than a pass takes together, and fewer."""
    return [[(7 * i + 3 * j * j + 1) % VOCAB_SIZE for j in range(1 + 5 * i % 13)] for i in range(n)]


def compare_training(command: list[str], name: str, dtype: torch.dtype, **environment: str) -> float:
    """Losses, gradients and orthogonalised matrices beside those of torch; the distance of the furthest gradient."""
    of_loss, of_gradient, of_matrix = (1e-5, 5e-5, 1e-4) if dtype == torch.float32 else (5e-3, 5e-2, 5e-2)
    model = make_model({**MODELS[name], "context_length": 70}, VOCAB_SIZE)
    tokens = torch.arange(3 * 71).reshape(3, 71) ** 2 * 5 % VOCAB_SIZE
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    torch.manual_seed(1)
    matrices = [torch.randn(20, 36), torch.randn(36, 20)]
    loss, gradients = by_autograd(model, inputs, targets)
    data, starts = train_input(model, dtype, 2, inputs, targets, matrices)
    losses, flat, *results = (np.frombuffer(block, np.float64 if i == 0 else np.float32)
                              for i, block in enumerate(answers(command, data, **environment)))  # fmt: skip
    for actual in losses:
        assert abs(actual / inputs.numel() - loss) <= of_loss * loss
    furthest = 0.0
    for key, expected in gradients.items():
        ours = torch.from_numpy(flat[starts[key] : starts[key] + expected.numel()].copy()).view_as(expected)
        furthest = max(furthest, float((ours - expected).norm() / expected.norm()))
    assert furthest <= of_gradient, furthest
    expected_matrices = newton_schulz_batched(matrices, [0.5, 0.5], torch.float32)
    for ours_, theirs in zip(results, expected_matrices, strict=True):
        difference = torch.from_numpy(ours_.copy()).view_as(theirs) - theirs
        assert float(difference.norm() / theirs.norm()) <= of_matrix
    return furthest
