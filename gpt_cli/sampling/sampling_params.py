"""Sampling parameters of one call, validated at construction."""

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypedDict

from gpt_cli.config import SampleConfig
from gpt_cli.config.contrastive_settings import search_conflict
from gpt_cli.errors import RequestError, did_you_mean

_GREEDY_BELOW = 1e-6  # dividing by a lower temperature could overflow fp32 logits


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams`, all optional."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int
    stop: str | Sequence[str]
    typical_p: float | None
    repetition_penalty: float | None
    no_repeat_ngram: int | None
    min_new_tokens: int
    logit_bias: Mapping[str, float] | Mapping[int, float] | Sequence[tuple[str | int, float]]
    forbid: str | None
    allow: str | None
    choices: Sequence[str]
    regex: str | None
    beams: int | None
    length_penalty: float
    penalty_alpha: float | None
    log_probs: bool


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters and stop conditions. `None` is off.

    Raises RequestError for a value outside its range, and for settings that exclude each other.
    """

    max_new_tokens: int = 200
    temperature: float = 0.8  # divides the logits; 0 always takes the likeliest token
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    typical_p: float | None = None
    repetition_penalty: float | None = None  # divides the logits of tokens that occurred already
    no_repeat_ngram: int | None = None  # no n-gram of this length occurs twice
    min_new_tokens: int = 0  # until then neither end-of-text nor a stop string ends the text
    logit_bias: tuple[tuple[str | int, float], ...] = ()  # added to the logit of a token: its text, or its id
    forbid: str | None = None  # characters that are not written
    allow: str | None = None  # the only characters that are written
    choices: tuple[str, ...] = ()  # the text is one of these
    regex: str | None = None  # the text matches it, in the sense of `re.fullmatch`
    beams: int | None = None  # beam search with so many beams
    length_penalty: float = 1.0  # for beam search: above 0 favours long texts, below 0 short ones
    penalty_alpha: float | None = None  # contrastive search among the top_k, with this weight of the similarity
    log_probs: bool = False  # record the log-probability of each token

    def __post_init__(self) -> None:
        _require(self.max_new_tokens >= 0, "max_new_tokens", "at least 0", self.max_new_tokens)
        _require(0 <= self.temperature < math.inf, "temperature", "0 or a positive number", self.temperature)
        _require(self.top_k is None or self.top_k >= 1, "top_k", "at least 1", self.top_k)
        _require(self.top_p is None or 0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        _require(self.min_p is None or 0 < self.min_p <= 1, "min_p", "above 0 and at most 1", self.min_p)
        _require(0 <= self.seed < 2**63, "seed", "at least 0 and below 2^63", self.seed)
        _require(all(self.stop), "stop", "a text of at least one character", "")
        p, penalty, n = self.typical_p, self.repetition_penalty, self.no_repeat_ngram
        _require(p is None or 0 < p <= 1, "typical_p", "above 0 and at most 1", p)
        _require(penalty is None or 0 < penalty < math.inf, "repetition_penalty", "a positive number", penalty)
        _require(n is None or n >= 1, "no_repeat_ngram", "at least 1", n)
        _require(self.min_new_tokens >= 0, "min_new_tokens", "at least 0", self.min_new_tokens)
        for token, bias in self.logit_bias:
            _require(bias < math.inf, f"logit_bias of {token!r}", "a number, or -inf for never", bias)
        _require(self.beams is None or self.beams >= 1, "beams", "at least 1", self.beams)
        _require(math.isfinite(self.length_penalty), "length_penalty", "a number", self.length_penalty)
        alpha = self.penalty_alpha
        _require(alpha is None or 0 < alpha <= 1, "penalty_alpha", "above 0 and at most 1", alpha)
        _require(all(self.choices), "choices", "texts of at least one character", "")
        self._check_conflicts()

    def _check_conflicts(self) -> None:
        """Refuse settings that contradict each other."""
        if self.choices and self.regex is not None:
            raise RequestError("give choices or a regex, not both")
        if (conflict := search_conflict(self.penalty_alpha, self.top_k, self.beams)) is not None:
            raise RequestError(conflict[0], hint=conflict[1])
        if self.pattern is None:
            return
        for name, value in (("stop", self.stop), ("min_new_tokens", self.min_new_tokens), ("beams", self.beams)):
            if value:
                raise RequestError(
                    f"{name} does not go with {'choices' if self.choices else 'regex'}, which ends the text itself"
                )

    @property
    def pattern(self) -> str | None:
        """The regular expression that the text must match, of `regex` or of `choices`."""
        return "|".join(map(re.escape, self.choices)) if self.choices else self.regex

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is always chosen, so that filters and seed are ignored."""
        return self.temperature < _GREEDY_BELOW

    @property
    def searches(self) -> bool:
        """True for beam and contrastive search, which ignore temperature, filters and seed."""
        return self.beams is not None or self.penalty_alpha is not None

    @classmethod
    def from_config(cls, config: SampleConfig, seed: int) -> Self:
        """The settings of a run's config: every field of this class that `SampleConfig` has, too."""
        shared = {field.name: getattr(config, field.name) for field in fields(cls) if hasattr(config, field.name)}
        return cls(**{**shared, "seed": seed, "stop": tuple(config.stop)})

    def replace(self, options: SamplingOptions) -> Self:
        """These settings, updated by `options`. A single stop string need not be in a list.

        A pattern, which ends the text itself, resets `stop`, `min_new_tokens` and `beams` unless options have them.
        Raises RequestError for an option that there is not.
        """
        values: dict[str, Any] = {**options}
        names = [field.name for field in fields(self)]
        if unknown := next((name for name in values if name not in names), None):
            hint = did_you_mean(unknown, names) or f"the options are: {', '.join(names)}"
            raise RequestError(f"there is no option {unknown}", hint=hint)
        if options.get("choices") or options.get("regex") is not None:
            values = {"stop": (), "min_new_tokens": 0, "beams": None, **values}
        if "stop" in options:
            stop = options["stop"]
            values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        if "choices" in options:
            values["choices"] = tuple(options["choices"])
        if "logit_bias" in options:
            bias = options["logit_bias"]
            values["logit_bias"] = tuple(bias.items() if isinstance(bias, Mapping) else bias)
        return replace(self, **values)


def random_seed() -> int:
    """A random seed, short enough to type."""
    return secrets.randbits(32)


def _require(is_valid: bool, name: str, range_: str, value: object) -> None:
    if not is_valid:
        raise RequestError(f"{name} must be {range_}, not {value!r}")
