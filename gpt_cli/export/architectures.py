"""The config.json of others, as a model of ours: every key is understood, known to change nothing, or refused.

A candidate is read from the sizes; it stands if the config.json that we would write for it says the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gpt_cli.config import ModelConfig
from gpt_cli.errors import UserError
from gpt_cli.export.layouts import GPT2, LLAMA, NANOCHAT, QWEN3, Layout

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
# What changes the function where it is not at this value.
_FIXED: dict[str, tuple[Any, ...]] = {
    "rope_scaling": (None,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "quantization_config": (None,),
    "reorder_and_upcast_attn": (False, True),
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1.0,),
}
_ALIASES = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu", "relu2": "relu2"}

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
class Reader:
    """How the config.json of one architecture is read.

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
    "gpt2": Reader(
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
    "llama": Reader(
        LLAMA,
        _LLAMA_SIZES,
        {**_ROTARY, "mlp": "swiglu", "qk_norm": False},
        "intermediate_size",
        "hidden_act",
        {"rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    ),
    "qwen3": Reader(
        QWEN3,
        _LLAMA_SIZES,
        {**_ROTARY, "mlp": "swiglu", "qk_norm": True},
        "intermediate_size",
        "hidden_act",
        {"rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "head_dim": 128},
    ),
    "nanochat": Reader(
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
    reader = READERS[kind]
    given = {"tie_word_embeddings": False, **reader.defaults, **file}
    config = _candidate(reader, given, place)
    _compare(reader.layout.describe(config), given, place)
    return reader.layout, config


def _candidate(reader: Reader, given: Mapping[str, Any], place: str) -> ModelConfig:
    """What the sizes say. Raises UserError for one that is missing, no number, or out of any range."""
    values = {option: given.get(key) for option, key in reader.sizes.items() if given.get(key) is not None}
    values |= {**reader.constant, "tie_embeddings": given["tie_word_embeddings"]}
    if missing := {"n_layer", "n_head", "n_embd", "context_length"} - values.keys():
        raise UserError(f"it does not say {reader.sizes[min(missing)]}", where=place)
    if "rope" in reader.constant.values():
        values["rope_theta"] = _theta(given)
    if reader.constant.get("mlp") is None:
        values["mlp"] = _ALIASES.get(str(given[reader.activation]), str(given[reader.activation]))
    if "attention_bias" in given:
        values["bias"] = given["attention_bias"]
    inner = given.get(reader.width)
    try:
        if inner is not None:
            values["mlp_ratio"] = _ratio(inner, values["n_embd"])
        elif reader.width != "n_inner":
            raise UserError(f"it does not say {reader.width}", where=place)
        config = ModelConfig.model_validate({"bias": False, "zero_init": False, **values})
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]) if problem["loc"] else ""
        key = reader.sizes.get(option, option)
        raise UserError(f"it is no model of ours: {key} {problem['msg']}".replace("  ", " "), where=place) from None
    except (TypeError, ZeroDivisionError, OverflowError):
        raise UserError(f"{reader.width} is {inner!r} and n_embd {values['n_embd']!r}", where=place) from None
    if config.context_length > LONGEST_CONTEXT:
        raise UserError(f"a context of {config.context_length:,} tokens is out of reach", where=place)
    return config


def _ratio(inner: int, width: Any) -> float:
    """The `mlp_ratio` of which `mlp_hidden`, which rounds up, makes `inner`: never above it by a rounding error."""
    ratio = inner / width
    return float(ratio if ratio * width <= inner else (inner - 0.5) / width)


def _theta(given: Mapping[str, Any]) -> float:
    rope = given.get("rope_parameters") or {}
    found = (rope.get("rope_theta") if isinstance(rope, dict) else None) or given.get("rope_theta") or 10_000.0
    return float(found) if type(found) in (int, float) else found


def _compare(ours: Mapping[str, Any], given: Mapping[str, Any], place: str) -> None:
    """Raise UserError unless `given` says what `ours` says, and nothing else that could matter."""
    for key, value in given.items():
        if key in ("model_type", "vocab_size", "tie_word_embeddings") or key.startswith("summary_"):
            continue
        if key in _FIXED:
            if value not in _FIXED[key]:
                raise UserError(f"{key} is {value!r}, which no model of ours can be", where=place)
        elif key in ("rope_parameters", "rope_theta"):
            _require_plain_rope(key, value, ours, place)
        elif key in ours and key not in _NEUTRAL:
            if value is not None and not _same(value, ours[key]):
                raise UserError(
                    f"{key} is {value!r}; a model of ours that has its other sizes has {ours[key]!r} there", where=place
                )
        elif key not in _NEUTRAL:
            raise UserError(f"it says {key}, and what that changes is not known here", where=place)


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, str) and isinstance(ours, str):
        return _ALIASES.get(theirs, theirs) == _ALIASES.get(ours, ours)
    return bool(theirs == ours)


def _require_plain_rope(key: str, value: Any, ours: Mapping[str, Any], place: str) -> None:
    if key == "rope_theta" or value is None:
        return  # read above
    if not isinstance(value, dict) or value.get("rope_type", "default") != "default":
        raise UserError(f"its rotary positions are stretched ({value!r:.80}), which no model of ours does", where=place)
    if foreign := value.keys() - {"rope_type", "rope_theta", "type"} - {"partial_rotary_factor"}:
        raise UserError(f"rope_parameters has {min(foreign)}, which is not known here", where=place)
    if value.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError("it rotates a part of each head only, which no model of ours does", where=place)
