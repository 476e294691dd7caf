"""The config.json of others, as a model of ours: every key is understood, known to change nothing, or refused.

A candidate is read from the sizes; it stands if the config.json that we would write for it says the same.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gpt_cli.config import Config, ModelConfig
from gpt_cli.config.validation_messages import translate_errors
from gpt_cli.config.yaml_subset import ParsedYaml
from gpt_cli.errors import UserError
from gpt_cli.export.layout import Layout
from gpt_cli.export.layouts import GPT2, LLAMA, LLAMA3_SCALING, NANOCHAT, QWEN3
from gpt_cli.export.numbers import check_numbers

LONGEST_CONTEXT = 1 << 20

# What tells how a model was trained, stored or is run, and nothing about its function.
_NEUTRAL = {
    "_attn_implementation", "_commit_hash", "_name_or_path", "architectures", "attention_dropout",
    "attn_implementation", "attn_pdrop", "bos_token_id", "dtype", "embd_pdrop", "eos_token_id",
    "gradient_checkpointing", "initializer_range", "keys_to_ignore_at_inference", "layer_types",
    "max_window_layers", "n_ctx", "output_attentions", "output_hidden_states", "pad_token_id",
    "pretraining_tp", "resid_pdrop", "return_dict", "sliding_window", "task_specific_params", "torch_dtype",
    "transformers_version", "unk_token_id", "use_cache",
}  # fmt: skip
_ROPE = {"rope_theta", "rope_scaling", "rope_parameters"}
# What changes the function where it is not at this value.
_FIXED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "quantization_config": (None,),
    "reorder_and_upcast_attn": (False, True),
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
    "use_sliding_window": (None, False),
    "partial_rotary_factor": (1.0,),
}
# Transformers' name -> ours. Its plain `gelu` is the exact one, with erf; ours is the tanh approximation.
_ACTIVATIONS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu", "relu2": "relu2"}

_LLAMA_SIZES = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "n_embd": "hidden_size",
    "context_length": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
}
_ROTARY = {"position": "rope", "norm": "rmsnorm"}


@dataclass(frozen=True)
class ConfigReader:
    """A parser of the config.json of one architecture.

    sizes     our option -> its key
    constant  what all models of the architecture have
    defaults  what Transformers takes for keys that are absent, as far as that is not what ours would say
    """

    layout: Layout
    sizes: Mapping[str, str]
    constant: Mapping[str, Any]
    width: str  # its key for the width of the MLP
    activation: str  # ... and for the activation
    defaults: Mapping[str, Any] = field(default_factory=dict)


READERS = {
    "gpt2": ConfigReader(
        GPT2,
        {
            "n_layer": "n_layer",
            "n_head": "n_head",
            "n_embd": "n_embd",
            "context_length": "n_positions",
            "norm_eps": "layer_norm_epsilon",
        },
        {"position": "learned", "norm": "layernorm", "qk_norm": False, "bias": True},
        "n_inner",
        "activation_function",
        {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"},
    ),
    "llama": ConfigReader(
        LLAMA,
        _LLAMA_SIZES,
        {**_ROTARY, "mlp": "swiglu", "qk_norm": False},
        "intermediate_size",
        "hidden_act",
        {"rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    ),
    "qwen3": ConfigReader(
        QWEN3,
        _LLAMA_SIZES,
        {**_ROTARY, "mlp": "swiglu", "qk_norm": True},
        "intermediate_size",
        "hidden_act",
        {"rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "head_dim": 128},
    ),
    "nanochat": ConfigReader(
        NANOCHAT,
        {**_LLAMA_SIZES, "logit_softcap": "final_logit_softcapping"},
        {**_ROTARY, "qk_norm": True, "norm_gain": False, "embedding_norm": True},
        "intermediate_size",
        "hidden_act",
        {"rms_norm_eps": 1e-6, "hidden_act": "relu2", "attention_bias": False, "mlp_bias": False,
         "final_logit_softcapping": 15.0},
    ),
}  # fmt: skip


def read_model(file: Mapping[str, Any], place: str) -> tuple[Layout, ModelConfig]:
    """The layout and the model that a parsed config.json describes; `place` names the file in errors.

    Raises UserError, naming the key, for an architecture that is not read here, and for anything that is not exactly
    a model of ours.
    """
    kind = file.get("model_type")
    if not isinstance(kind, str) or kind not in READERS:
        raise UserError(f"its model_type is {kind!r}, not one of {', '.join(READERS)}", where=place)
    if "auto_map" in file:
        raise UserError("it wants code of its own to be run (auto_map), which is never done", where=place)
    check_numbers(file, place)
    reader = READERS[kind]
    given = {"tie_word_embeddings": False, **reader.defaults, **file}
    config = _candidate(reader, given, place)
    _compare(reader.layout.describe(config), given, place)
    return reader.layout, config


def _candidate(reader: ConfigReader, given: Mapping[str, Any], place: str) -> ModelConfig:
    """The model of the sizes. Raises UserError for one that is missing, no number, or out of any range."""
    values = {option: given.get(key) for option, key in reader.sizes.items() if given.get(key) is not None}
    values |= {**reader.constant, "tie_embeddings": given["tie_word_embeddings"]}
    if missing := {"n_layer", "n_head", "n_embd", "context_length"} - values.keys():
        raise UserError(f"it does not say {reader.sizes[min(missing)]}", where=place)
    if "rope" in reader.constant.values():
        values |= _rotary(given, place)
    if reader.layout is QWEN3:
        values["window"] = _window(given, place)
    if reader.constant.get("mlp") is None:
        values["mlp"] = _activation(reader.activation, given[reader.activation], place)
    if "attention_bias" in given:
        values["bias"] = given["attention_bias"]
    inner = given.get(reader.width)
    try:
        if inner is not None:
            values["mlp_ratio"] = mlp_ratio(inner, values["n_embd"])
        elif reader.width != "n_inner":
            raise UserError(f"it does not say {reader.width}", where=place)
        config = Config.model_validate({"model": {"bias": False, "zero_init": False, **values}}).model
    except ValidationError as error:
        problem = next(translate_errors(error, ParsedYaml(place, {"model": values})))
        theirs = {**reader.sizes, "mlp_ratio": reader.width, "bias": "attention_bias"}
        message = re.sub(r"model\.(\w+)", lambda key: theirs.get(key[1], key[1]), problem.message)
        raise UserError(f"it is no model of ours: {message}", where=place) from None
    except (TypeError, ZeroDivisionError, OverflowError):
        raise UserError(f"{reader.width} is {inner!r} and n_embd {values['n_embd']!r}", where=place) from None
    if config.context_length > LONGEST_CONTEXT:
        raise UserError(f"a context of {config.context_length:,} tokens is out of reach", where=place)
    return config


def _activation(key: str, value: Any, place: str) -> str:
    """Our name for an activation. Raises UserError for one that no model of ours has."""
    if isinstance(value, str) and value in _ACTIVATIONS:
        return _ACTIVATIONS[value]
    exact = " (the exact GELU, with erf, of which ours is the tanh approximation)" if value == "gelu" else ""
    raise UserError(f"{key} is {value!r}{exact}, not one of {', '.join(_ACTIVATIONS)}", where=place)


def mlp_ratio(inner: int, width: Any) -> float:
    """The `mlp_ratio` of which `mlp_hidden`, which rounds up, makes `inner`: never above it by a rounding error."""
    ratio = inner / width
    return float(ratio if ratio * width <= inner else (inner - 0.5) / width)


def _window(given: Mapping[str, Any], place: str) -> Any:
    """The window of a Qwen3's layers, None for all the way. Raises UserError where that differs by layer."""
    if not given.get("use_sliding_window") or given.get("sliding_window") is None:
        return None
    kinds, full, layers = given.get("layer_types"), given.get("max_window_layers", 28), given["num_hidden_layers"]
    if isinstance(kinds, list):
        windowed = kinds.count("sliding_attention")
        is_some, is_all = windowed > 0, windowed == len(kinds)
    elif kinds is None and type(full) is type(layers) is int:
        is_some, is_all = full < layers, full <= 0
    else:
        raise UserError(f"layer_types is {kinds!r:.80}, max_window_layers {full!r:.80}", where=place)
    if is_some and not is_all:
        raise UserError("it has a window in some of its layers, and a model of ours in all or none", where=place)
    return given["sliding_window"] if is_some else None


def _rotary(given: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Our `rope_theta` and `rope_scaling`, of which others tell in rope_theta, rope_scaling and rope_parameters.

    Raises UserError, naming it, for what no model of ours does.
    """
    told: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = given.get(key) or {}
        if not isinstance(part, dict):
            raise UserError(f"{key} is {part!r:.80}", where=place)
        part = dict(part)
        if "type" in part and part.setdefault("rope_type", part["type"]) == part["type"]:
            del part["type"]  # its older name
        if differing := [name for name in part.keys() & told.keys() if part[name] != told[name]]:
            raise UserError(f"rope_scaling and rope_parameters differ in {min(differing)}", where=place)
        told |= part
    thetas = [theta for theta in (told.pop("rope_theta", None), given.get("rope_theta")) if theta is not None]
    if len(set(thetas)) > 1:
        raise UserError(f"rope_theta is {thetas[1]!r}, and {thetas[0]!r} in its rotary positions", where=place)
    values: dict[str, Any] = {"rope_theta": float(thetas[0]) if thetas else 10_000.0}
    if told.pop("partial_rotary_factor", 1.0) != 1.0:
        raise UserError("it rotates a part of each head only, which no model of ours does", where=place)
    kind = told.pop("rope_type", "default")
    if kind == "llama3":
        if missing := [name for name in LLAMA3_SCALING if name not in told]:
            raise UserError(f"its rotary positions are scaled as in Llama 3.1 without {missing[0]}", where=place)
        scaling = [told.pop(name) for name in LLAMA3_SCALING]
        values["rope_scaling"] = [float(x) if type(x) is int else x for x in scaling[:3]] + scaling[3:]
    elif kind != "default":
        raise UserError(f"its rotary positions are scaled by {kind!r:.40}, and ours only by 'llama3'", where=place)
    if told:
        raise UserError(f"its rotary positions have {min(told)}, which is not known here", where=place)
    return values


def _compare(ours: Mapping[str, Any], given: Mapping[str, Any], place: str) -> None:
    """Raise UserError unless `given` says what `ours` says, and nothing else that could matter."""
    for key, value in given.items():
        if key in ("model_type", "vocab_size", "tie_word_embeddings") or key.startswith("summary_"):
            continue
        if key in _ROPE and ("rope_theta" in ours or value is None):
            continue  # the candidate was made of it
        if key in _FIXED and key not in ours:
            if value not in _FIXED[key]:
                raise UserError(f"{key} is {value!r}, and {_FIXED[key][-1]!r} in all models of ours", where=place)
        elif key in ours and key not in _NEUTRAL:
            if value is not None and not _same(value, ours[key]):
                raise UserError(
                    f"{key} is {value!r}; a model of ours that has its other sizes has {ours[key]!r} there", where=place
                )
        elif key not in _NEUTRAL:
            raise UserError(f"it says {key}, and what that changes is not known here", where=place)


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, str) and isinstance(ours, str) and theirs in _ACTIVATIONS:
        return _ACTIVATIONS[theirs] == _ACTIVATIONS.get(ours)
    return bool(theirs == ours)
