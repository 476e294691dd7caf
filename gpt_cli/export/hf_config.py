"""Read a foreign config.json as a model config: every key is understood, in _NEUTRAL, or refused.

A candidate is built from the sizes; it is accepted if the config.json that we would write for it has the same values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gpt_cli.config import Config, ModelConfig
from gpt_cli.config.problems import translate_errors
from gpt_cli.config.yaml_reader import ParsedYaml
from gpt_cli.errors import UserError
from gpt_cli.export.architectures import GPT2, LLAMA, LLAMA3_SCALING, NANOCHAT, QWEN3
from gpt_cli.export.layout import Layout
from gpt_cli.export.numbers import check_numbers
from gpt_cli.terminal.words import plural

LONGEST_CONTEXT = 1 << 20

# Keys about training, storage and execution, which do not change the function.
_NEUTRAL = {
    "_attn_implementation", "_commit_hash", "_name_or_path", "attention_dropout",
    "attn_implementation", "attn_pdrop", "bos_token_id", "dtype", "embd_pdrop", "eos_token_id",
    "gradient_checkpointing", "initializer_range", "keys_to_ignore_at_inference",
    "max_window_layers", "n_ctx", "output_attentions", "output_hidden_states", "pad_token_id",
    "pretraining_tp", "resid_pdrop", "return_dict", "sliding_window", "task_specific_params", "torch_dtype",
    "transformers_version", "unk_token_id", "use_cache",
}  # fmt: skip
_CHECKED = {"architectures", "layer_types", "model_type", "tie_word_embeddings", "vocab_size"}  # elsewhere
_ROPE = {"rope_theta", "rope_scaling", "rope_parameters"}
# Keys that would change the function at any other value.
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

    others    its further architectures that are read: without a head, which is then the embedding, or of classes
    sizes     our option -> its key
    constant  our options that all models of the architecture share
    defaults  Transformers' defaults of absent keys, where they differ from ours
    """

    layout: Layout
    others: tuple[str, ...]
    sizes: Mapping[str, str]
    constant: Mapping[str, Any]
    width: str  # key of the width of the MLP
    activation: str  # key of the activation
    defaults: Mapping[str, Any] = field(default_factory=dict)


READERS = {
    "gpt2": ConfigReader(
        GPT2,
        ("GPT2Model", "GPT2ForSequenceClassification"),
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
        ("LlamaForSequenceClassification",),
        _LLAMA_SIZES,
        {**_ROTARY, "mlp": "swiglu", "qk_norm": False},
        "intermediate_size",
        "hidden_act",
        {"rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    ),
    "qwen3": ConfigReader(
        QWEN3,
        ("Qwen3ForSequenceClassification",),
        _LLAMA_SIZES,
        {**_ROTARY, "mlp": "swiglu", "qk_norm": True},
        "intermediate_size",
        "hidden_act",
        {"rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "head_dim": 128},
    ),
    "nanochat": ConfigReader(
        NANOCHAT,
        (),
        {**_LLAMA_SIZES, "logit_softcap": "final_logit_softcapping"},
        {**_ROTARY, "qk_norm": True, "norm_gain": False, "embedding_norm": True},
        "intermediate_size",
        "hidden_act",
        {"rms_norm_eps": 1e-6, "hidden_act": "relu2", "attention_bias": False, "mlp_bias": False,
         "final_logit_softcapping": 15.0},
    ),
}  # fmt: skip


def read_model(file: Mapping[str, Any], location: str) -> tuple[Layout, ModelConfig]:
    """The layout and the model of a parsed config.json; `location` names the file in errors.

    Raises UserError, naming the key, for an unknown architecture, and for a model that `gpt` cannot represent exactly.
    """
    model_type = file.get("model_type")
    if not isinstance(model_type, str) or model_type not in READERS:
        raise UserError(f"its model_type is {model_type!r}, not one of {', '.join(READERS)}", where=location)
    if "auto_map" in file:
        raise UserError("it wants code of its own to be run (auto_map), which is never done", where=location)
    check_numbers(file, location)
    reader = READERS[model_type]
    _check_architectures(reader, file.get("architectures"), location)
    keys = {"tie_word_embeddings": False, **reader.defaults, **file}
    config = _candidate(reader, keys, location)
    _check_layer_types(config, keys.get("layer_types"), location)
    _compare(reader.layout.describe(config), keys, location)
    return reader.layout, config


def _check_architectures(reader: ConfigReader, value: Any, location: str) -> None:
    """Raise UserError unless `architectures` is absent or one that has the reader's keys and a head that we have."""
    known = (reader.layout.architecture, *reader.others)
    if value is not None and value not in [[architecture] for architecture in known]:
        raise UserError(f"architectures is {value!r:.80}, not [{'] or ['.join(map(repr, known))}]", where=location)


def _check_layer_types(config: ModelConfig, value: Any, location: str) -> None:
    """Raise UserError unless `layer_types` is absent or names, for each layer, the attention that all of ours have."""
    kind = "full_attention" if config.window is None else "sliding_attention"
    is_known = isinstance(value, list) and len(value) == config.n_layer and all(one == kind for one in value)
    if value is not None and not is_known:
        layers = plural(config.n_layer, "layer")
        raise UserError(f"layer_types is {value!r:.80}, not {kind!r} for each of {layers}", where=location)


def _candidate(reader: ConfigReader, keys: Mapping[str, Any], location: str) -> ModelConfig:
    """The model of the keys. Raises UserError for one that is missing, of the wrong type or out of range."""
    values = {option: keys.get(key) for option, key in reader.sizes.items() if keys.get(key) is not None}
    values |= {**reader.constant, "tie_embeddings": keys["tie_word_embeddings"]}
    if missing := {"n_layer", "n_head", "n_embd", "context_length"} - values.keys():
        raise UserError(f"it does not say {reader.sizes[min(missing)]}", where=location)
    if "rope" in reader.constant.values():
        values |= _rotary(keys, location)
    if reader.layout is QWEN3:
        values["window"] = _window(keys, location)
    if reader.constant.get("mlp") is None:
        values["mlp"] = _activation(reader.activation, keys[reader.activation], location)
    if "attention_bias" in keys:
        values["bias"] = keys["attention_bias"]
    mlp_width = keys.get(reader.width)
    try:
        if mlp_width is not None:
            values["mlp_ratio"] = mlp_ratio(mlp_width, values["n_embd"])
        elif reader.width != "n_inner":
            raise UserError(f"it does not say {reader.width}", where=location)
        config = Config.model_validate({"model": {"bias": False, "zero_init": False, **values}}).model
    except ValidationError as error:
        problem = next(translate_errors(error, ParsedYaml(location, {"model": values})))
        foreign_keys = {**reader.sizes, "mlp_ratio": reader.width, "bias": "attention_bias"}
        message = problem.message
        for key in problem.keys:
            name = key.removeprefix("model.")
            message = message.replace(key, foreign_keys.get(name, name))
        raise UserError(f"it is no model of ours: {message}", where=location) from None
    except (TypeError, ZeroDivisionError, OverflowError):
        raise UserError(f"{reader.width} is {mlp_width!r} and n_embd {values['n_embd']!r}", where=location) from None
    if config.context_length > LONGEST_CONTEXT:
        raise UserError(f"a context of {config.context_length:,} tokens is out of reach", where=location)
    return config


def _activation(key: str, value: Any, location: str) -> str:
    """Our name of an activation. Raises UserError for an unknown one."""
    if isinstance(value, str) and value in _ACTIVATIONS:
        return _ACTIVATIONS[value]
    exact = " (the exact GELU, with erf, of which ours is the tanh approximation)" if value == "gelu" else ""
    raise UserError(f"{key} is {value!r}{exact}, not one of {', '.join(_ACTIVATIONS)}", where=location)


def mlp_ratio(mlp_width: int, width: Any) -> float:
    """The `mlp_ratio` for which `ModelConfig.mlp_hidden`, which rounds up, is exactly `mlp_width`."""
    ratio = mlp_width / width
    return float(ratio if ratio * width <= mlp_width else (mlp_width - 0.5) / width)


def _window(keys: Mapping[str, Any], location: str) -> Any:
    """The attention window of a Qwen3, None for full attention. Raises UserError if it differs between layers."""
    if not keys.get("use_sliding_window") or keys.get("sliding_window") is None:
        return None
    layer_types, n_full, n_layer = keys.get("layer_types"), keys.get("max_window_layers", 28), keys["num_hidden_layers"]
    if isinstance(layer_types, list):
        n_windowed = layer_types.count("sliding_attention")
        any_windowed, all_windowed = n_windowed > 0, n_windowed == len(layer_types)
    elif layer_types is None and type(n_full) is type(n_layer) is int:
        any_windowed, all_windowed = n_full < n_layer, n_full <= 0
    else:
        raise UserError(f"layer_types is {layer_types!r:.80}, max_window_layers {n_full!r:.80}", where=location)
    if any_windowed and not all_windowed:
        raise UserError("it has a window in some of its layers, and a model of ours in all or none", where=location)
    return keys["sliding_window"] if any_windowed else None


def _rotary(keys: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Our `rope_theta` and `rope_scaling` from the keys rope_theta, rope_scaling and rope_parameters.

    Raises UserError, naming the parameter, for rotary positions that we do not have.
    """
    parameters: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        section = keys.get(key) or {}
        if not isinstance(section, dict):
            raise UserError(f"{key} is {section!r:.80}", where=location)
        section = dict(section)
        if "type" in section and section.setdefault("rope_type", section["type"]) == section["type"]:
            del section["type"]  # its older name
        if conflicts := [name for name in section.keys() & parameters.keys() if section[name] != parameters[name]]:
            raise UserError(f"rope_scaling and rope_parameters differ in {min(conflicts)}", where=location)
        parameters |= section
    thetas = [theta for theta in (parameters.pop("rope_theta", None), keys.get("rope_theta")) if theta is not None]
    if len(set(thetas)) > 1:
        raise UserError(f"rope_theta is {thetas[1]!r}, and {thetas[0]!r} in its rotary positions", where=location)
    values: dict[str, Any] = {"rope_theta": float(thetas[0]) if thetas else 10_000.0}
    if parameters.pop("partial_rotary_factor", 1.0) != 1.0:
        raise UserError("it rotates a part of each head only, which no model of ours does", where=location)
    rope_type = parameters.pop("rope_type", "default")
    if rope_type == "llama3":
        if missing := [name for name in LLAMA3_SCALING if name not in parameters]:
            raise UserError(f"its rotary positions are scaled as in Llama 3.1 without {missing[0]}", where=location)
        scaling = [parameters.pop(name) for name in LLAMA3_SCALING]
        values["rope_scaling"] = [float(x) if type(x) is int else x for x in scaling[:3]] + scaling[3:]
    elif rope_type != "default":
        raise UserError(
            f"its rotary positions are scaled by {rope_type!r:.40}, and ours only by 'llama3'", where=location
        )
    if parameters:
        raise UserError(f"its rotary positions have {min(parameters)}, which is not known here", where=location)
    return values


def _compare(ours: Mapping[str, Any], keys: Mapping[str, Any], location: str) -> None:
    """Raise UserError for a key of the file that differs from `ours`, or that is unknown."""
    for key, value in keys.items():
        if key in _CHECKED or key.startswith("summary_"):
            continue
        if key in _ROPE and ("rope_theta" in ours or value is None):
            continue  # `_rotary` has read it
        if key in _FIXED and key not in ours:
            if value not in _FIXED[key]:
                raise UserError(f"{key} is {value!r}, and {_FIXED[key][-1]!r} in all models of ours", where=location)
        elif key in ours and key not in _NEUTRAL:
            if value is not None and not _same(value, ours[key]):
                raise UserError(
                    f"{key} is {value!r}; a model of ours that has its other sizes has {ours[key]!r} there",
                    where=location,
                )
        elif key not in _NEUTRAL:
            raise UserError(f"it says {key}, and what that changes is not known here", where=location)


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, str) and isinstance(ours, str) and theirs in _ACTIVATIONS:
        return _ACTIVATIONS[theirs] == _ACTIVATIONS.get(ours)
    return bool(theirs == ours)
