"""Recipes: named presets for the keys that a config leaves open.

A recipe sets every key in which recipes differ, so it does not depend on the defaults. It leaves out the text, the
model's size, the context and the length of the run. Keys in the config take precedence. `docs/recipes.md` has results.
"""

from collections.abc import Mapping
from typing import Any

# fmt: off
_PLAIN: Mapping[str, Any] = {
    "causal": True, "norm_position": "pre", "embedding_norm": False, "n_kv_head": None, "mlp_ratio": None,
    "logit_softcap": None, "head_gate": False, "window": None, "previous_token_init": False,
}
# GPT-2 (Radford et al., 2019), with the schedule and the decay rates of GPT-3 (Brown et al., 2020).
_GPT2: Mapping[str, Any] = {
    **_PLAIN, "position": "learned", "norm": "layernorm", "norm_gain": True, "mlp": "gelu", "qk_norm": False,
    "bias": True, "tie_embeddings": True, "init_std": 0.02, "zero_init": False,
}
# Qwen3's layout (Qwen Team, 2025), which others read exactly.
_QWEN3: Mapping[str, Any] = {
    **_PLAIN, "position": "rope", "rope_theta": 10_000.0, "rope_scaling": None, "rope_rounding": "reciprocal",
    "norm": "rmsnorm", "norm_gain": True, "mlp": "swiglu", "qk_norm": True, "bias": False, "tie_embeddings": False,
    "init_std": None, "zero_init": True,
}
_COMMON: Mapping[str, Any] = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0, "ema": None}
_MUON: Mapping[str, Any] = {**_COMMON, "name": "muon", "lr": 0.02, "adamw_lr": 0.005, "momentum": 0.8}
_WSD: Mapping[str, Any] = {"kind": "wsd", "warmup_steps": 20, "min_lr_ratio": 0.0, "decay_fraction": 0.5}

RECIPES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "classic": {
        "model": _GPT2,
        "optim": {**_COMMON, "name": "adamw", "lr": 2e-3},
        "schedule": {"kind": "cosine", "warmup_steps": 20, "min_lr_ratio": 0.1},
    },
    "modern": {"model": _QWEN3, "optim": _MUON, "schedule": _WSD},
    # The same in a hurry: what a run of some hundred steps does best with, as configs/shakespeare_cpu.yaml is one.
    "speed": {
        "model": _QWEN3,
        "optim": {**_MUON, "adamw_lr": 0.015, "momentum": 0.7, "weight_decay": 0.0},
        "schedule": {**_WSD, "decay_fraction": 0.75},
    },
}
"""Recipe -> section -> key -> value."""
# fmt: on
