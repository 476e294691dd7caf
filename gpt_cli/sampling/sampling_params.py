"""Sampling parameters of one call, validated at construction."""

import json
import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Self, TypedDict

from gpt_cli.config import SampleConfig
from gpt_cli.config.data_schema import MAX_BEAMS, MAX_LENGTH_PENALTY, MAX_PENALTY, MAX_TEMPERATURE
from gpt_cli.config.removed import SAMPLING, accept_removed, without_removed
from gpt_cli.config.synonyms import suggest
from gpt_cli.errors import RequestError
from gpt_cli.literals import INT32_MAX
from gpt_cli.tokenizer.base import encode_text

CONSTRAINTS = ("choices", "regex", "json_schema", "grammar")  # options of which a text has at most one
SEEDS = 2**63  # a seed is below
MAX_BIAS = 1e9  # of a logit, which fp32 still has after a division by the lowest temperature
_GREEDY_BELOW = 1e-6  # dividing by a lower temperature could overflow fp32 logits


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams`, all optional."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int
    stop: str | Sequence[str] | None
    repetition_penalty: float | None
    no_repeat_ngram: int | None
    min_new_tokens: int
    logit_bias: Mapping[str, float] | Mapping[int, float] | Sequence[tuple[str | int, float]] | None
    choices: str | Sequence[str] | None
    regex: str | None
    json_schema: str | Mapping[str, Any] | None
    grammar: str | None
    beams: int | None
    length_penalty: float
    log_probs: bool
    heal: bool


@dataclass(frozen=True)
class OptionRange:
    """The values that an option may have; in an error `words` stand after "must be"."""

    words: str
    contains: Callable[[Any], bool]
    highest: float = math.inf
    """The bound that an error names for a value above it; no other value reaches it."""


_FROM_0 = OptionRange("at least 0", lambda value: value >= 0, INT32_MAX)
_FROM_1 = OptionRange("at least 1", lambda value: value >= 1, INT32_MAX)
_BEAMS = OptionRange("at least 1", lambda value: value >= 1, MAX_BEAMS)
_FRACTION = OptionRange("above 0 and at most 1", lambda value: 0 < value <= 1)
_TEMPERATURE = OptionRange("0 or a positive number", lambda value: 0 <= value < math.inf, MAX_TEMPERATURE)
_PENALTY = OptionRange(
    f"from {1 / MAX_PENALTY:g} to {MAX_PENALTY:g}", lambda value: 1 / MAX_PENALTY <= value <= MAX_PENALTY
)
_LENGTH_PENALTY = OptionRange(
    f"from {-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}", lambda value: abs(value) <= MAX_LENGTH_PENALTY
)
_SEED = OptionRange("at least 0 and below 2^63", lambda value: 0 <= value < SEEDS)


def _option(default: Any, allowed: OptionRange | None = None, *, off: Any = None) -> Any:
    """A field of `SamplingParams` with its range; `off` stands for None on the command line and in a request."""
    return field(default=default, metadata={"range": allowed, "off": off})


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters and stop conditions. `None` is off.

    Raises RequestError for a value outside its range, and for settings that exclude each other.
    """

    max_new_tokens: int = _option(200, _FROM_0)
    temperature: float = _option(0.8, _TEMPERATURE)  # divides the logits; 0 always takes the likeliest token
    top_k: int | None = _option(None, _FROM_1, off=0)
    top_p: float | None = _option(None, _FRACTION)
    min_p: float | None = _option(None, _FRACTION, off=0)
    seed: int = _option(0, _SEED)
    stop: tuple[str, ...] = ()
    repetition_penalty: float | None = _option(None, _PENALTY)  # divides the logits of tokens that occurred already
    no_repeat_ngram: int | None = _option(None, _FROM_1, off=0)  # no n-gram of this length occurs twice
    min_new_tokens: int = _option(0, _FROM_0)  # until then neither end-of-text nor a stop string ends the text
    logit_bias: tuple[tuple[str | int, float], ...] = ()  # added to the logit of a token: its text, or its id
    choices: tuple[str, ...] = ()  # the text is one of these
    regex: str | None = None  # the whole text matches it
    beams: int | None = _option(None, _BEAMS, off=0)  # the width of beam search
    length_penalty: float = _option(1.0, _LENGTH_PENALTY)  # of beam search: above 0 favours long texts
    log_probs: bool = False  # record the log-probability of each token
    heal: bool = True  # take back the end of a plain text prompt: see heal.py
    json_schema: str | None = None  # the text is JSON that this schema, as JSON text, allows
    grammar: str | None = None  # the text is of the language of this grammar, in llguidance's variant of Lark

    def __post_init__(self) -> None:
        for name in _FIELDS:
            if (problem := range_problem(name, getattr(self, name))) is not None:
                raise RequestError(f"{name} {problem}")
        for name in ("stop", *CONSTRAINTS):
            texts = getattr(self, name)
            for text in texts if isinstance(texts, tuple) else () if texts is None else (texts,):
                if not _is_text(text):
                    raise RequestError(f"{name} must be a text, not {text!r}")
                encode_text(text)  # raises for half a surrogate pair, which no text has
        for name in ("log_probs", "heal"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if not all(self.stop):
            raise RequestError("stop must be a text of at least one character, not ''")
        if not all(self.choices):
            raise RequestError("choices must be texts of at least one character, not ''")
        for entry in self.logit_bias:
            if not _is_bias(entry):
                raise RequestError(f"logit_bias must be {{token: number}}, a token a text or an id, not {entry!r}")
            token, bias = entry
            if not _is_number(bias) or not (bias == -math.inf or abs(bias) <= MAX_BIAS):
                allowed = f"a number from {-MAX_BIAS:g} to {MAX_BIAS:g}, or -inf for never"
                raise RequestError(f"logit_bias of {token!r} must be {allowed}, not {bias!r}")
        self._check_conflicts()

    def _check_conflicts(self) -> None:
        """Refuse settings that contradict each other."""
        given = [name for name in CONSTRAINTS if getattr(self, name) not in (None, ())]
        if len(given) > 1:
            raise RequestError(f"give {given[0]} or {given[1]}, not both")
        if not given:
            return
        ends = {} if given == ["grammar"] else {"stop": self.stop}  # of a grammar's text a stop string ends a match
        for name, value in {**ends, "min_new_tokens": self.min_new_tokens, "beams": self.beams}.items():
            if value:
                raise RequestError(
                    f"{name} does not go with {given[0]}, which ends the text itself",
                    hint="beams 0 draws it" if name == "beams" else None,
                )

    @property
    def constraint(self) -> tuple[str, str] | None:
        """The option that constrains the text and its source, a regular expression for `choices`; None: none does."""
        if self.choices:
            return "choices", "|".join(map(re.escape, self.choices))
        sources = {name: getattr(self, name) for name in CONSTRAINTS if name != "choices"}
        return next(((name, source) for name, source in sources.items() if source is not None), None)

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is always chosen, so that filters and seed are ignored."""
        return self.temperature < _GREEDY_BELOW

    @classmethod
    def from_config(cls, config: SampleConfig, seed: int) -> Self:
        """The settings of a run's config: every field of this class that `SampleConfig` has, too."""
        shared = {name: getattr(config, name) for name in _FIELDS if hasattr(config, name)}
        return cls(**{**shared, "seed": seed, "stop": tuple(config.stop)})

    def replace(self, options: SamplingOptions) -> Self:
        """These settings, updated by `options`. None, or the value that is off, switches one off.

        One stop string or choice need not be in a list.

        A constraint, which ends the text itself, resets `stop` and `min_new_tokens` unless options have them.
        Raises RequestError for an option that there is not.
        """
        options = without_removed(options, SAMPLING)  # type: ignore[assignment]
        if unknown := next((name for name in options if name not in _FIELDS), None):
            meant = suggest(unknown, _FIELDS)
            hint = None if meant else f"the options are: {', '.join(_FIELDS)}"
            raise RequestError(f"there is no option {unknown}", choices=meant, hint=hint)
        values = {name: off_as_none(name, value) for name, value in options.items()}
        if isinstance(values.get("json_schema"), Mapping):
            values["json_schema"] = json.dumps(values["json_schema"])
        if given := [name for name in CONSTRAINTS if values.get(name) not in (None, ())]:
            ends = {} if given == ["grammar"] else {"stop": ()}
            values = {**ends, "min_new_tokens": 0, **values}
        for name in ("stop", "choices", "logit_bias"):
            if name in values:
                values[name] = _to_tuple(values[name])
        if options.get("choices") is not None and not values["choices"]:
            raise RequestError("choices are empty: there is no text to write", hint="choices=None is off")
        return replace(self, **values)


def with_learned_end(options: SamplingOptions, learned_end: str) -> SamplingOptions:
    """`options` whose stop strings, if any, end a text besides `learned_end`, with which a model ends an answer."""
    if not learned_end:
        return options
    stop = _to_tuple(options.get("stop"))
    return {**options, "stop": (*stop, learned_end)} if stop else options


SamplingParams.__init__ = accept_removed(*SAMPLING)(SamplingParams.__init__)  # type: ignore[method-assign]
_FIELDS = {field.name: field for field in fields(SamplingParams)}


def range_problem(name: str, value: Any) -> str | None:
    """The end of an error, such as "must be at least 1, not 0", if the option `name` may not have this value."""
    option = _FIELDS[name]
    allowed: OptionRange | None = option.metadata.get("range")
    if allowed is None or (value is None and option.default is None):
        return None
    kind, words = (Integral, "a whole number") if option.type in (int, int | None) else (Real, "a number")
    if isinstance(value, bool) or not isinstance(value, kind):
        return f"must be {words}, not {value!r}"
    value = float(value) if kind is Real else value
    if allowed.highest < value < math.inf:
        return f"must be at most {allowed.highest:,.10g}, not {value!r}"
    if allowed.contains(value):
        return None
    off = option.metadata.get("off")
    or_off = "" if off is None or value == off else f", or {off} for off"
    return f"must be {allowed.words}{or_off}, not {value!r}"


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def _is_bias(entry: object) -> bool:
    return isinstance(entry, Sequence) and len(entry) == 2 and isinstance(entry[0], str | Integral)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _to_tuple(value: str | Iterable[Any] | None) -> tuple[Any, ...]:
    """A text alone, the items of a mapping or a sequence, or nothing for None."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):  # which is refused for what it is
        return (value,)
    return tuple(value.items() if isinstance(value, Mapping) else value)


def off_as_none(name: str, value: Any) -> Any:
    """`value`, or None if it is the 0 that switches the option `name` off where there is no None."""
    off = _FIELDS[name].metadata.get("off")
    return None if off is not None and value == off else value


def random_seed() -> int:
    """A random seed, short enough to type."""
    return secrets.randbits(32)
