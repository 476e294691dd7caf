"""How to write: the settings of one call, checked when they are made."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict

from gpt_cli.config import SampleConfig
from gpt_cli.errors import RequestError

_GREEDY_BELOW = 1e-6  # where dividing by the temperature would only turn fp32 logits into infinities


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampling`, each of which a caller may leave as it is."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int
    stop: str | Sequence[str]


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens from logits, and when to stop. `None` is off.

    Raises RequestError for a value outside its range.
    """

    max_new_tokens: int = 200
    temperature: float = 0.8  # divides the logits; 0 always takes the likeliest token
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require(self.max_new_tokens >= 0, "max_new_tokens", "at least 0", self.max_new_tokens)
        _require(0 <= self.temperature < math.inf, "temperature", "0 or a positive number", self.temperature)
        _require(self.top_k is None or self.top_k >= 1, "top_k", "at least 1", self.top_k)
        _require(self.top_p is None or 0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        _require(self.min_p is None or 0 < self.min_p <= 1, "min_p", "above 0 and at most 1", self.min_p)
        _require(0 <= self.seed < 2**63, "seed", "at least 0 and below 2^63", self.seed)
        _require(all(self.stop), "stop", "a text of at least one character", "")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken, so that neither filters nor the seed matter."""
        return self.temperature < _GREEDY_BELOW

    @classmethod
    def from_config(cls, config: SampleConfig, seed: int) -> Self:
        """The settings that a run's config keeps for it."""
        return cls(
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            min_p=config.min_p,
            seed=seed,
        )

    def changed(self, options: SamplingOptions) -> Self:
        """These settings with `options` in place of what they name. One stop string need not be in a list."""
        values: dict[str, Any] = {**options}
        if "stop" in options:
            stop = options["stop"]
            values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        return replace(self, **values)


def fresh_seed() -> int:
    """A seed for whoever does not care which, short enough to be typed again."""
    return secrets.randbits(32)


def _require(holds: bool, name: str, range_: str, value: object) -> None:
    if not holds:
        raise RequestError(f"{name} must be {range_}, not {value!r}")
