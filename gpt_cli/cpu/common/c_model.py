"""The fields of a model that both engines are given, as `MODEL_FIELDS` of parameters.h lays them out."""

import ctypes
from typing import Any

from gpt_cli.config import ModelConfig

_INTEGERS = (
    *("n_layer", "n_head", "n_kv_head", "head_dim", "n_embd", "mlp_hidden", "vocab_size", "context_length"),
    *("layernorm", "mlp", "window"),
)
_FLOATS = ("norm_eps", "softcap", "embedding_scale")
_MLPS = ("relu", "gelu", "swiglu", "relu2")

MODEL_FIELDS: tuple[tuple[str, Any], ...] = (
    *((name, ctypes.c_int32) for name in _INTEGERS),
    *((name, ctypes.c_float) for name in _FLOATS),
)


def model_fields(config: ModelConfig, vocab_size: int, embedding_scale: float) -> dict[str, Any]:
    """The values of `MODEL_FIELDS`."""
    return {
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_kv_head": config.kv_heads,
        "head_dim": config.head_dim,
        "n_embd": config.n_embd,
        "mlp_hidden": config.mlp_hidden,
        "vocab_size": vocab_size,
        "context_length": config.context_length,
        "layernorm": config.norm == "layernorm",
        "mlp": _MLPS.index(config.mlp),
        "window": 0 if config.window is None else min(config.window, config.context_length),
        "norm_eps": config.norm_eps,
        "softcap": config.logit_softcap or 0.0,
        "embedding_scale": embedding_scale,
    }
