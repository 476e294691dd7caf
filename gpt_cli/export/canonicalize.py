"""The same function in other words, for architectures that lack a word of ours.

Each takes a model's config and tensors and returns those of a model with equal logits; what does not apply to a model
leaves it as it is.
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
    """Sinusoids, or no positions at all, as a table that could have been learned.

    With sinusoids the tokens are scaled, so the head, where it was tied, keeps a copy of its own.
    """
    width, length = config.n_embd, config.context_length
    if config.position == "none":
        return config.model_copy(update={"position": "learned"}), {**tensors, POSITIONS: torch.zeros(length, width)}
    if config.position == "sinusoidal":
        scaled = tensors[TOKENS] * math.sqrt(width)
        table = {**tensors, TOKENS: scaled, POSITIONS: sinusoids(length, width), HEAD: tensors[HEAD]}
        return config.model_copy(update={"position": "learned", "tie_embeddings": False}), table
    return config, tensors


def add_zero_biases(config: ModelConfig, tensors: Tensors) -> ModelTensors:
    """Zero for each bias that a linear layer or a norm of the model lacks."""
    if config.bias:
        return config, tensors
    lacking = [name for name in tensors if name.startswith(("blocks.", "norm."))]
    biases = {name.removesuffix("weight") + "bias": torch.zeros(len(tensors[name])) for name in lacking}
    return config.model_copy(update={"bias": True}), {**tensors, **biases}


def add_zero_norm_biases(config: ModelConfig, tensors: Tensors) -> ModelTensors:
    """Zero for the bias that each LayerNorm lacks; linear layers stay as they are, and so does `bias`."""
    if config.bias or config.norm != "layernorm":
        return config, tensors
    norms = [name for name in tensors if name.split(".")[-2] in ("norm", "norm1", "norm2")]
    return config, {**tensors, **{name.removesuffix("weight") + "bias": torch.zeros(config.n_embd) for name in norms}}


def expand_gqa(config: ModelConfig, tensors: Tensors) -> ModelTensors:
    """Keys and values of a group of query heads repeated for each of them (Ainslie et al., 2023, backwards)."""
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
    """One for each gain of norms that have none."""
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
    """The norm after the embedding applied to the table: where no positions are added, it sees single rows of it."""
    if not config.embedding_norm or (config.position, config.norm) != ("rope", "rmsnorm"):
        return config, tensors
    normalised = F.rms_norm(tensors[TOKENS], (config.n_embd,), tensors.get(_GAIN), eps=config.norm_eps)
    update = {"embedding_norm": False, "tie_embeddings": False}
    others = {name: tensor for name, tensor in tensors.items() if name != _GAIN}
    return config.model_copy(update=update), {**others, TOKENS: normalised, HEAD: tensors[HEAD]}
