"""The architectures of Transformers that runs are exported as, the most common first: the first that fits is chosen."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gpt_cli.capabilities import ANY
from gpt_cli.config import ModelConfig
from gpt_cli.export.canonicalize import (
    add_unit_gains,
    add_zero_biases,
    add_zero_norm_biases,
    expand_gqa,
    fold_embedding_norm,
    materialize_positions,
)
from gpt_cli.export.layout import Layout
from gpt_cli.export.names import name
from gpt_cli.model.parameters import gate_up_rows, qkv_rows

ACTIVATIONS = {"relu": "relu", "gelu": "gelu_pytorch_tanh", "relu2": "relu2", "swiglu": "silu"}
"""Ours -> Transformers'."""

_PRE = {"norm_position": ("pre",), "embedding_norm": (False,), "norm_gain": (True,)}
_ROTARY = {**_PRE, "position": ("rope",), "logit_softcap": (None,)}
_LAYER = "model.layers.{}"

_EMBEDDINGS = (name("embedding.tokens", "model.embed_tokens"), name("head", "lm_head"), name("norm", "model.norm"))
_ATTENTION = (
    name("blocks.{}.attention.qkv", *(f"{_LAYER}.self_attn.{x}_proj" for x in "qkv"), rows=qkv_rows),
    name("blocks.{}.attention.out", f"{_LAYER}.self_attn.o_proj"),
)
_QK_NORMS = tuple(name(f"blocks.{{}}.attention.{x}_norm", f"{_LAYER}.self_attn.{x}_norm") for x in "qk")
_NORMS = (
    name("blocks.{}.norm1", f"{_LAYER}.input_layernorm"),
    name("blocks.{}.norm2", f"{_LAYER}.post_attention_layernorm"),
)
_GATED = (
    name("blocks.{}.mlp.gate_up", f"{_LAYER}.mlp.gate_proj", f"{_LAYER}.mlp.up_proj", rows=gate_up_rows),
    name("blocks.{}.mlp.down", f"{_LAYER}.mlp.down_proj"),
)
_UP_DOWN = tuple(name(f"blocks.{{}}.mlp.{x}", f"{_LAYER}.mlp.{x}_proj") for x in ("up", "down"))
_TO_GAINS = (fold_embedding_norm, add_unit_gains)


def _llama_config(config: ModelConfig) -> dict[str, Any]:
    """Config keys that most architectures after Llama share."""
    return {
        "hidden_size": config.n_embd,
        "intermediate_size": config.mlp_hidden,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": ACTIVATIONS[config.mlp],
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        **_rope_config(config),
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "attention_dropout": config.attention_dropout,
    }


LLAMA3_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""Keys of `model.rope_scaling`, in its order."""


def _rope_config(config: ModelConfig) -> dict[str, Any]:
    """`rope_parameters`, and `rope_scaling` for Transformers before version 5."""
    if config.rope_scaling is None:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta}}
    scaling = {"rope_type": "llama3", **dict(zip(LLAMA3_SCALING, config.rope_scaling, strict=True))}
    return {"rope_scaling": scaling, "rope_parameters": {**scaling, "rope_theta": config.rope_theta}}


def _qwen3_config(config: ModelConfig) -> dict[str, Any]:
    windowed = {"use_sliding_window": True, "sliding_window": config.window, "max_window_layers": 0}
    return _llama_config(config) | (windowed if config.window is not None else {})


def _gpt2_config(config: ModelConfig) -> dict[str, Any]:
    return {
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.n_embd,
        "n_inner": config.mlp_hidden,
        "n_positions": config.context_length,
        "activation_function": "gelu_new" if config.mlp == "gelu" else ACTIVATIONS[config.mlp],
        "layer_norm_epsilon": config.norm_eps,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
    }


def transpose_conv1d(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Transpose the matrices: GPT-2 stores them as (inputs, outputs). It is its own inverse."""
    return {key: tensor.mT if ".h." in key and tensor.dim() == 2 else tensor for key, tensor in tensors.items()}


GPT2 = Layout(
    "GPT2LMHeadModel",
    "gpt2",
    {
        **_PRE,
        "position": ("learned",),
        "norm": ("layernorm",),
        "mlp": ("gelu", "relu", "relu2"),
        "qk_norm": (False,),
        "logit_softcap": (None,),
        "window": (None,),
    },
    (
        name("embedding.tokens", "transformer.wte"),
        name("embedding.positions", "transformer.wpe"),
        name("blocks.{}.norm1", "transformer.h.{}.ln_1"),
        name("blocks.{}.attention.qkv", "transformer.h.{}.attn.c_attn"),
        name("blocks.{}.attention.out", "transformer.h.{}.attn.c_proj"),
        name("blocks.{}.norm2", "transformer.h.{}.ln_2"),
        name("blocks.{}.mlp.up", "transformer.h.{}.mlp.c_fc"),
        name("blocks.{}.mlp.down", "transformer.h.{}.mlp.c_proj"),
        name("norm", "transformer.ln_f"),
        name("head", "lm_head"),
    ),
    _gpt2_config,
    transpose_conv1d,
    (materialize_positions, expand_gqa, add_zero_biases),
)

LLAMA = Layout(
    "LlamaForCausalLM",
    "llama",
    {
        **_ROTARY,
        "rope_scaling": ANY,
        "norm": ("rmsnorm",),
        "mlp": ("swiglu",),
        "qk_norm": (False,),
        "window": (None,),
    },
    (*_EMBEDDINGS, *_ATTENTION, *_NORMS, *_GATED),
    _llama_config,
    rewrites=_TO_GAINS,
)

QWEN3 = Layout(
    "Qwen3ForCausalLM",
    "qwen3",
    {
        **_ROTARY,
        "rope_scaling": ANY,
        "norm": ("rmsnorm",),
        "mlp": ("swiglu",),
        "qk_norm": (True,),
        "bias": (False,),
        "window": ANY,
    },
    (*_EMBEDDINGS, *_ATTENTION, *_QK_NORMS, *_NORMS, *_GATED),
    _qwen3_config,
    rewrites=_TO_GAINS,
)


def swap_rope_halves(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Swap the halves of each head of Q and K: NanoChat rotates in the opposite direction. It is its own inverse."""

    def swapped(tensor: Tensor) -> Tensor:
        first, second = tensor.unflatten(0, (-1, config.head_dim)).chunk(2, dim=1)  # (H, D / 2, ...) each
        return torch.cat((second, first), dim=1).flatten(0, 1)

    parts = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
    return {key: swapped(tensor) if key.endswith(parts) else tensor for key, tensor in tensors.items()}


NANOCHAT = Layout(
    "NanoChatForCausalLM",
    "nanochat",
    {
        "position": ("rope",),
        "norm": ("rmsnorm",),
        "norm_position": ("pre",),
        "norm_gain": (False,),
        "embedding_norm": (True,),
        "mlp": ("relu2", "relu", "gelu"),
        "qk_norm": (True,),
        "bias": (False,),
        "logit_softcap": ANY,
        "window": (None,),
    },
    (
        *_EMBEDDINGS,
        *_ATTENTION,
        name("blocks.{}.mlp.up", f"{_LAYER}.mlp.fc1"),
        name("blocks.{}.mlp.down", f"{_LAYER}.mlp.fc2"),
    ),
    lambda config: _llama_config(config) | {"final_logit_softcapping": config.logit_softcap},
    swap_rope_halves,
)

MISTRAL = Layout(
    "MistralForCausalLM",
    "mistral",
    {**_ROTARY, "norm": ("rmsnorm",), "mlp": ("swiglu",), "qk_norm": (False,), "bias": (False,), "window": ANY},
    LLAMA.names,
    lambda config: _llama_config(config) | {"sliding_window": config.window},
    rewrites=_TO_GAINS,
)

ARCEE = Layout(
    "ArceeForCausalLM",
    "arcee",
    {**_ROTARY, "norm": ("rmsnorm",), "mlp": ("relu2", "relu", "gelu"), "qk_norm": (False,), "window": (None,)},
    (*_EMBEDDINGS, *_ATTENTION, *_NORMS, *_UP_DOWN),
    _llama_config,
    rewrites=_TO_GAINS,
)

APERTUS = Layout(
    "ApertusForCausalLM",
    "apertus",
    {
        **_ROTARY,
        "norm": ("rmsnorm",),
        "mlp": ("relu2", "relu", "gelu"),
        "qk_norm": (True,),
        "bias": (False,),
        "window": (None,),
    },
    (
        *_EMBEDDINGS,
        *_ATTENTION,
        *_QK_NORMS,
        name("blocks.{}.norm1", f"{_LAYER}.attention_layernorm"),
        name("blocks.{}.norm2", f"{_LAYER}.feedforward_layernorm"),
        *_UP_DOWN,
    ),
    # Without the key Transformers before version 5 scales the positions as in Llama 3.1.
    lambda config: {"rope_scaling": None, **_llama_config(config)},
    rewrites=_TO_GAINS,
)

STARCODER2 = Layout(
    "Starcoder2ForCausalLM",
    "starcoder2",
    {**_ROTARY, "norm": ("layernorm",), "mlp": ("gelu", "relu", "relu2"), "qk_norm": (False,), "window": ANY},
    (
        *_EMBEDDINGS,
        *_ATTENTION,
        *_NORMS,
        name("blocks.{}.mlp.up", f"{_LAYER}.mlp.c_fc"),
        name("blocks.{}.mlp.down", f"{_LAYER}.mlp.c_proj"),
    ),
    lambda config: (
        _llama_config(config)
        | {
            "use_bias": config.bias,
            "norm_epsilon": config.norm_eps,
            "sliding_window": config.window,
            "residual_dropout": config.dropout,
            "embedding_dropout": config.dropout,
        }
    ),
    rewrites=(add_zero_norm_biases,),
)

STABLELM = Layout(
    "StableLmForCausalLM",
    "stablelm",
    {
        **_ROTARY,
        "norm": ("layernorm",),
        "mlp": ("swiglu",),
        "qk_norm": (False,),
        "bias": (False,),
        "window": (None,),
    },
    LLAMA.names,
    lambda config: (
        _llama_config(config)
        | {
            "layer_norm_eps": config.norm_eps,
            "partial_rotary_factor": 1.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta, "partial_rotary_factor": 1.0},
            "use_qkv_bias": False,
            "use_parallel_residual": False,
            "hidden_dropout": config.dropout,
        }
    ),
    rewrites=(add_zero_norm_biases,),
)


def _padded_positions(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the two unused rows at the start of OPT's position table."""
    key = "model.decoder.embed_positions.weight"
    return {**tensors, key: F.pad(tensors[key], (0, 0, 2, 0))}


def _unpadded_positions(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove these rows."""
    key = "model.decoder.embed_positions.weight"
    return {**tensors, key: tensors[key][2:]}


_OPT_LAYER = "model.decoder.layers.{}"
OPT = Layout(
    "OPTForCausalLM",
    "opt",
    {
        "position": ("learned",),
        "norm": ("layernorm",),
        "norm_position": ("post",),
        "norm_eps": (1e-5,),
        "norm_gain": (True,),
        "embedding_norm": (False,),
        "mlp": ("relu", "gelu", "relu2"),
        "qk_norm": (False,),
        "logit_softcap": (None,),
        "window": (None,),
    },
    (
        name("embedding.tokens", "model.decoder.embed_tokens"),
        name("embedding.positions", "model.decoder.embed_positions"),
        name("blocks.{}.attention.qkv", *(f"{_OPT_LAYER}.self_attn.{x}_proj" for x in "qkv"), rows=qkv_rows),
        name("blocks.{}.attention.out", f"{_OPT_LAYER}.self_attn.out_proj"),
        name("blocks.{}.norm1", f"{_OPT_LAYER}.self_attn_layer_norm"),
        name("blocks.{}.mlp.up", f"{_OPT_LAYER}.fc1"),
        name("blocks.{}.mlp.down", f"{_OPT_LAYER}.fc2"),
        name("blocks.{}.norm2", f"{_OPT_LAYER}.final_layer_norm"),
        name("head", "lm_head"),
    ),
    lambda config: {
        "hidden_size": config.n_embd,
        "word_embed_proj_dim": config.n_embd,
        "ffn_dim": config.mlp_hidden,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "max_position_embeddings": config.context_length,
        "activation_function": ACTIVATIONS[config.mlp],
        "do_layer_norm_before": False,
        "enable_bias": True,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
    },
    _padded_positions,
    (materialize_positions, expand_gqa, add_zero_biases),
    _unpadded_positions,
)

LAYOUTS = (GPT2, LLAMA, QWEN3, NANOCHAT, MISTRAL, ARCEE, APERTUS, STARCODER2, STABLELM, OPT)
