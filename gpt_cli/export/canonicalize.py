"""Rewrites of a model into an equivalent one with other options, for architectures that lack an option of ours.

Each takes a config and tensors and returns those of a model with equal logits; a model that it does not apply to is
returned as it is.
"""

import math

import torch
from torch.nn import functional as F

from gpt_cli.config import ModelConfig
from gpt_cli.export.names import Tensors
from gpt_cli.model.parameters import qkv_rows
from gpt_cli.model.position import sinusoids

ModelTensors = tuple[ModelConfig, Tensors]

TOKENS, POSITIONS, HEAD = "embedding.tokens.weight", "embedding.positions.weight", "head.weight"
_GAIN = "embedding.norm.weight"


def materialize_positions(config: ModelConfig, tensors: Tensors) -> ModelTensors:
    """Sinusoidal or no positions as a learned position table.

    Sinusoidal models scale the token embedding by sqrt(C), so a tied head becomes a separate, unscaled copy.
    """
    width, length = config.n_embd, config.context_length
    if config.position == "none":
        return config.model_copy(update={"position": "learned"}), {**tensors, POSITIONS: torch.zeros(length, width)}
    if config.position == "sinusoidal":
        scaled = tensors[TOKENS] * math.sqrt(width)
        replaced = {**tensors, TOKENS: scaled, POSITIONS: sinusoids(length, width), HEAD: tensors[HEAD]}
        return config.model_copy(update={"position": "learned", "tie_embeddings": False}), replaced
    return config, tensors


def add_zero_biases(config: ModelConfig, tensors: Tensors) -> ModelTensors:
    """Add a bias of zeros to each linear layer and norm that has none."""
    if config.bias:
        return config, tensors
    weights = [name for name in tensors if name.startswith(("blocks.", "norm."))]
    biases = {name.removesuffix("weight") + "bias": torch.zeros(len(tensors[name])) for name in weights}
    return config.model_copy(update={"bias": True}), {**tensors, **biases}


def add_zero_norm_biases(config: ModelConfig, tensors: Tensors) -> ModelTensors:
    """Add a bias of zeros to each LayerNorm that has none; linear layers and `bias` are unchanged."""
    if config.bias or config.norm != "layernorm":
        return config, tensors
    norms = [name for name in tensors if name.split(".")[-2] in ("norm", "norm1", "norm2")]
    return config, {**tensors, **{name.removesuffix("weight") + "bias": torch.zeros(config.n_embd) for name in norms}}


def expand_gqa(config: ModelConfig, tensors: Tensors) -> ModelTensors:
    """Turn grouped-query into multi-head attention: repeat each K/V head for the query heads of its group."""
    if config.kv_heads == config.n_head:
        return config, tensors
    repeated = dict(tensors)
    for name, tensor in tensors.items():
        if ".attention.qkv." in name:
            q, *kv = tensor.split(qkv_rows(config))
            heads = [x.unflatten(0, (config.kv_heads, -1)) for x in kv]  # (Hkv, D, ...)
            wide = [x.repeat_interleave(config.n_head // config.kv_heads, dim=0).flatten(0, 1) for x in heads]
            repeated[name] = torch.cat([q, *wide])
    return config.model_copy(update={"n_kv_head": None}), repeated


def add_unit_gains(config: ModelConfig, tensors: Tensors) -> ModelTensors:
    """Add a gain of ones to each norm that has none."""
    if config.norm_gain:
        return config, tensors
    gains: dict[str, torch.Tensor] = {"norm.weight": torch.ones(config.n_embd)}
    for layer in range(config.n_layer):
        block = f"blocks.{layer}"
        gains |= {f"{block}.{norm}.weight": torch.ones(config.n_embd) for norm in ("norm1", "norm2")}
        if config.qk_norm:
            gains |= {f"{block}.attention.{norm}.weight": torch.ones(config.head_dim) for norm in ("q_norm", "k_norm")}
    return config.model_copy(update={"norm_gain": True}), {**tensors, **gains}


def fold_embedding_norm(config: ModelConfig, tensors: Tensors) -> ModelTensors:
    """Apply the norm after the embedding to the table itself: without added positions its input is a row of it."""
    if not config.embedding_norm or (config.position, config.norm) != ("rope", "rmsnorm"):
        return config, tensors
    normalised = F.rms_norm(tensors[TOKENS], (config.n_embd,), tensors.get(_GAIN), eps=config.norm_eps)
    update = {"embedding_norm": False, "tie_embeddings": False}
    rest = {name: tensor for name, tensor in tensors.items() if name != _GAIN}
    return config.model_copy(update=update), {**rest, TOKENS: normalised, HEAD: tensors[HEAD]}
