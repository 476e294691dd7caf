"""Check the numbers of a foreign config.json: type, finite, in range."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpt_cli.errors import UserError


@dataclass(frozen=True)
class Range:
    """The range of a number. Upper limits are far above those of any real model."""

    low: float
    high: float
    integer: bool = False

    def allows(self, value: object) -> bool:
        """True for a number in the range. Booleans are none, and 2.0 is no integer."""
        if isinstance(value, bool) or not isinstance(value, int if self.integer else int | float):
            return False
        return self.low <= value <= self.high  # False for NaN

    def __str__(self) -> str:
        if self.integer:
            return f"a whole number from {self.low:,} to {self.high:,}"
        return f"a finite number from {self.low:g} to {self.high:g}"


_LAYERS, _WIDTH, _TOKENS = Range(1, 10_000, True), Range(1, 10_000_000, True), Range(2, 1 << 30, True)
_EPS, _SHARE, _FACTOR = Range(1e-30, 1.0), Range(0.0, 1.0), Range(1e-6, 1e6)
_KEYS: dict[str, Range] = {
    **dict.fromkeys(("n_layer", "num_hidden_layers"), _LAYERS),
    **dict.fromkeys(("n_head", "num_attention_heads", "num_key_value_heads", "head_dim"), _WIDTH),
    **dict.fromkeys(("n_embd", "hidden_size", "n_inner", "intermediate_size"), _WIDTH),
    **dict.fromkeys(("n_positions", "n_ctx", "max_position_embeddings"), _TOKENS),
    **dict.fromkeys(("vocab_size", "original_max_position_embeddings"), _TOKENS),
    **dict.fromkeys(("layer_norm_epsilon", "rms_norm_eps"), _EPS),
    **dict.fromkeys(("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "initializer_range"), _SHARE),
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "final_logit_softcapping"), _FACTOR),
    "partial_rotary_factor": Range(1e-6, 1.0),
    "rope_theta": Range(1.0, 1e12),
}
_NESTED = ("rope_parameters", "rope_scaling")


def check_numbers(file: Mapping[str, Any], location: str) -> None:
    """Raise UserError, naming the key, for a number of a config.json or its rotary positions that is out of range.

    null is the same as an absent key.
    """
    sections = {f"{key}.": section for key in _NESTED if isinstance(section := file.get(key), dict)}
    for prefix, section in {"": file, **sections}.items():
        for key, allowed in _KEYS.items():
            if (value := section.get(key)) is not None and not allowed.allows(value):
                raise UserError(f"{prefix}{key} must be {allowed}, not {value!r:.60}", where=location)
