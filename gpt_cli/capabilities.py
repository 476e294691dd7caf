"""The model options that each engine and cache supports; any other is refused (default-deny).

A row lists, for every option of `ModelConfig` that its code reads, the values that it computes. An option that a row
does not list must stand at the schema's default, so a new option, off by default, is computed by torch from the day it
is in `gpt_cli/model`, and by nothing else until somebody adds it to a row. The rows of exports are their layouts
(`export/architectures.py`, `export/gguf.py`).

Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpt_cli.config import ModelConfig, to_yaml_scalar

KnownValues = tuple[Any, ...]


class _AnyValue(tuple[Any, ...]):
    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return True


ANY: KnownValues = _AnyValue()
"""Every value, those too that the schema may allow one day: for numbers, not for switches and choices by name."""
BOTH: KnownValues = (False, True)


@dataclass(frozen=True)
class Capabilities:
    """The options that `name` supports: option -> supported values."""

    name: str
    options: Mapping[str, KnownValues]

    def unsupported(self, config: ModelConfig) -> dict[str, KnownValues]:
        """The options that stand at a value that is not known -> the values that are."""
        values, fields = options_of(config), type(config).model_fields
        known = {option: self.options.get(option, (field.default,)) for option, field in fields.items()}
        return {option: known[option] for option in fields if values[option] not in known[option]}

    def refusal(self, config: ModelConfig) -> str | None:
        """The first of the unsupported options with its value, such as "model.norm_position: post", or None."""
        values = options_of(config)
        return next((f"model.{option}: {to_yaml_scalar(values[option])}" for option in self.unsupported(config)), None)


def options_of(config: ModelConfig) -> dict[str, Any]:
    """Every option and its value; a window over the whole context is none."""
    values = {option: getattr(config, option) for option in type(config).model_fields}
    sees_all = config.window is None or config.window >= config.context_length
    return {**values, "window": None if sees_all else config.window}


SIZES: Mapping[str, KnownValues] = {
    **dict.fromkeys(("n_layer", "n_head", "n_kv_head", "n_embd", "context_length", "mlp_ratio"), ANY),
    **dict.fromkeys(("rope_theta", "norm_eps"), ANY),
    "rope_rounding": ("reciprocal", "power"),
    "rope_scaling": (None,),
    "causal": (True,),
    "head_gate": (False,),
    "bias": BOTH,
    "tie_embeddings": BOTH,
    **dict.fromkeys(("dropout", "attention_dropout"), ANY),  # only training depends on them
    **{"init_std": ANY, "zero_init": BOTH, "previous_token_init": ANY},  # only the initial weights depend on them
}
"""Options in every row, but for the exceptions that a row states."""

_FUNCTION: Mapping[str, KnownValues] = {
    **SIZES,
    "position": ("learned", "sinusoidal", "rope", "none"),
    "rope_scaling": ANY,
    "norm": ("layernorm", "rmsnorm"),
    "norm_position": ("pre", "post"),
    "norm_gain": BOTH,
    "embedding_norm": BOTH,
    "mlp": ("relu", "gelu", "swiglu", "relu2"),
    "qk_norm": BOTH,
    "logit_softcap": ANY,
    "window": ANY,
}

NATIVE_TRAINER = Capabilities(
    "the C trainer",
    {**_FUNCTION, "norm_position": ("pre",), "embedding_norm": (False,)},
)
"""`cpu/train`. Another model is trained by torch."""

NATIVE_DECODER = Capabilities("the C decoder", {**_FUNCTION, "norm_gain": (True,), "embedding_norm": (False,)})
"""`cpu/decode`: the C decoder and, beside it, its reference in NumPy, which knows no more and no less. Another model is
decoded by torch."""

_BY_TORCH = {**_FUNCTION, "position": (*_FUNCTION["position"], "alibi"), "head_gate": BOTH}

KV_CACHE = Capabilities("the KV cache", _BY_TORCH)
"""`model/kv_cache.py`. Without it `sampling.generate` computes the whole window for each token."""

RAGGED_CACHE = Capabilities("the KV cache of unequal prompts", _BY_TORCH)
"""The same, of prompts of unequal length in one batch."""

STATIC_CACHE = Capabilities("the KV cache of CUDA graphs", _BY_TORCH)
"""`model/static_cache.py`. Without it decode steps are launched one operation at a time."""

LORA = Capabilities("LoRA", {**_BY_TORCH, "causal": BOTH})
"""`training/lora.py`, which finds its matrices by name. Another model is refused."""

ATTENTION_MAPS = Capabilities("gpt attention", _FUNCTION)
"""`evaluation/attention_*.py`, which compute the weights of the heads once more. Another model is refused."""

ENGINES = (NATIVE_TRAINER, NATIVE_DECODER, KV_CACHE, RAGGED_CACHE, STATIC_CACHE, LORA, ATTENTION_MAPS)
