"""A small model for the native engine, for every option that the engine has."""

from itertools import product
from typing import Any

import torch

from gpt_cli.config import ModelConfig
from gpt_cli.cpu.decode.weights import Weights, read_weights
from gpt_cli.model.gpt import GPT
from gpt_cli.run.arrays import unpack_arrays
from gpt_cli.run.tensors import pack_tensors

VOCAB_SIZE = 37
CONTEXT = 20
OPTIONS: list[dict[str, Any]] = [
    *({"mlp": mlp, "bias": bias} for mlp in ("relu", "gelu", "swiglu", "relu2") for bias in (False, True)),
    *(
        {"norm": norm, "norm_position": position, "bias": bias}
        for norm, position, bias in product(("layernorm", "rmsnorm"), ("pre", "post"), (False, True))
    ),
    *({"position": position} for position in ("learned", "sinusoidal", "rope", "none")),
    *({"n_kv_head": heads, "qk_norm": norm} for heads, norm in product((1, 2, None), (True, False))),
    *({"window": window} for window in (1, 3, 17, 1000)),
    *({"n_embd": width, "n_head": heads} for width, heads in ((4, 1), (12, 2), (40, 2), (72, 3), (160, 1))),
    {"tie_embeddings": True},
    {"logit_softcap": 2.0},
    {"context_length": 2},
    {"mlp_ratio": 1.3},
    {"n_layer": 1, "n_head": 2},
    {"rope_theta": 500.0, "norm_eps": 1e-2},
    {"rope_scaling": (8.0, 1.0, 4.0, 12)},
    {"rope_rounding": "power"},
]  # fmt: skip


def make_model(vocab_size: int = VOCAB_SIZE, **options: Any) -> GPT:
    """A small model whose every part matters: nothing is zero or one, and weights are large."""
    shape = {"n_layer": 3, "n_head": 4, "n_embd": 32, "context_length": CONTEXT}
    torch.manual_seed(0)
    config = ModelConfig(**{**shape, "zero_init": False, "init_std": 0.2, **options})
    model = GPT(config, vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def weights_of(model: GPT) -> Weights:
    """As a checkpoint of the model would give them."""
    arrays = unpack_arrays(pack_tensors(model.state_dict()), "model")
    return read_weights(model.config, model.head.out_features, arrays)
