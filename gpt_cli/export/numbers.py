"""Numbers of a foreign config.json, checked before anything is made of them: of the right type, finite, in range."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpt_cli.errors import UserError


@dataclass(frozen=True)
class Range:
    """The range of a number. An upper limit is there to be named; none of a working model comes near it."""

    low: float
    high: float
    whole: bool = False

    def allows(self, value: object) -> bool:
        """True if it is such a number. True and False are none, nor is 2.0 a whole one."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return self.low <= value <= self.high  # which NaN is not

    def __str__(self) -> str:
        if self.whole:
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


def check_numbers(file: Mapping[str, Any], place: str) -> None:
    """Raise UserError, naming the key, for a number of a config.json, or of its rotary positions, that cannot be one.

    null stands for a key that is not there.
    """
    parts = {f"{key}.": part for key in _NESTED if isinstance(part := file.get(key), dict)}
    for prefix, part in {"": file, **parts}.items():
        for key, allowed in _KEYS.items():
            if (value := part.get(key)) is not None and not allowed.allows(value):
                raise UserError(f"{prefix}{key} must be {allowed}, not {value!r:.60}", where=place)
