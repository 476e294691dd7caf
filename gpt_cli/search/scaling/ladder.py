"""The ladder: four widths by four lengths, and one larger and longer run that the fit does not see.

Every run has its own length and its own decay of the learning rate: the loss amid a run is not that of a shorter one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpt_cli.config import Config
from gpt_cli.errors import RequestError
from gpt_cli.model.sizing import flops_per_token
from gpt_cli.search.time_budget import with_values
from gpt_cli.terminal.words import plural

_WIDTHS = (0.25, 0.375, 0.5, 0.75)  # of the config's
_LENGTHS = (1, 2, 4, 8)  # of the shortest run
_HELD_OUT = (1.0, 16)  # width and length
_LARGER = (2.0, 4.0, 8.0, 16.0)  # widths whose speed alone is measured, where that of the ladder's does not differ
_DISTINCT = 2.0  # times the shortest time of a token
_FEWEST_STEPS = 100  # of shorter runs the law is another: docs/scaling_laws.md
_FEWEST_SIZES = 3
_TRAINING_SHARE = 0.85  # of the budget, for training; the rest is for start-up, evaluation and saving


@dataclass(frozen=True)
class Rung:
    """A run of the ladder."""

    n_layer: int
    n_head: int
    n_embd: int
    steps: int
    held_out: bool = False

    def config(self, base: Config) -> Config:
        """`base` in this size and of this length."""
        values: dict[str, Any] = {
            **shape_values(self.n_layer, self.n_head, self.n_embd),
            "train.steps": self.steps,
            "schedule.warmup_steps": min(base.schedule.warmup_steps, self.steps // 10),
            "eval.every": None,
            "checkpoint.every": max(1, self.steps // 8),
            "sample.every": None,
        }
        return with_values(base, values)


def shape_values(n_layer: int, n_head: int, n_embd: int) -> dict[str, Any]:
    return {"model.n_layer": n_layer, "model.n_head": n_head, "model.n_kv_head": None, "model.n_embd": n_embd}


def shape(base: Config, scale: float) -> tuple[int, int, int]:
    """(n_layer, n_head, n_embd) `scale` times as wide as `base`, and deeper by the root of that."""
    unit = 8
    n_embd = max(unit, round(base.model.n_embd * scale / unit) * unit)
    n_layer = max(1, round(base.model.n_layer * math.sqrt(scale)))
    limit = max(1, round(n_embd / base.model.head_dim))
    most_heads = min(max(limit, min(base.model.n_head, 2)), n_embd // unit)  # which previous-token heads need
    n_head = next(heads for heads in range(most_heads, 0, -1) if n_embd % (2 * heads) == 0)
    return n_layer, n_head, n_embd


def effective_parameters(config: Config, vocab_size: int) -> float:
    """N: a sixth of the operations per token, attention included, so that training costs 6 N D."""
    return flops_per_token(config.model, vocab_size) / 6.0


def plan_ladder(base: Config, seconds: float, jobs: int, per_token: Mapping[float, float]) -> list[Rung]:
    """The runs that take `seconds` altogether, `jobs` in parallel; `per_token` is {scale of the width: seconds}.

    Widths that come to one size, as those of a small config do, are trained once. Raises RequestError if there are
    fewer than _FEWEST_SIZES, or if the shortest run would have fewer than _FEWEST_STEPS.
    """
    widths = list({shape(base, width): width for width in _WIDTHS}.values())
    if len(widths) < _FEWEST_SIZES:
        raise RequestError(
            f"model.n_embd={base.model.n_embd} is too small for a ladder of sizes: below it there are {len(widths)}",
            hint="model.n_embd=64",
        )
    tokens_per_step = base.train.batch_size * base.model.context_length
    scale, length = _HELD_OUT
    longest = length * per_token[scale]
    work = sum(_LENGTHS) * sum(per_token[width] for width in widths) + longest
    work = max(work / jobs, longest)
    shortest = _TRAINING_SHARE * seconds / work / tokens_per_step  # steps
    if shortest < _FEWEST_STEPS:
        needed = math.ceil(1.5 * _FEWEST_STEPS * tokens_per_step * work / _TRAINING_SHARE)  # seconds, which vary
        budget = f"{needed}s" if needed < 100 else f"{math.ceil(needed / 60)}m"
        raise RequestError(
            f"the budget of {seconds:,.0f} s is too small: the shortest run would have"
            f" {plural(round(shortest), 'step')}, fewer than {_FEWEST_STEPS}",
            hint=f"--budget {budget}, or a smaller config",
        )
    steps = int(shortest)
    ladder = [Rung(*shape(base, scale), steps * length, held_out=True)]  # the longest first: nothing waits for it
    return ladder + [Rung(*shape(base, width), steps * times) for times in _LENGTHS[::-1] for width in widths[::-1]]


def scales() -> Sequence[float]:
    """The widths of the ladder, whose speed is measured."""
    return (*_WIDTHS, _HELD_OUT[0])


def measure_scales(measure: Callable[[Config], float], base: Config) -> dict[float, float]:
    """{scale: seconds per token}, where `measure` returns the seconds per token of a config.

    Of narrow configs larger scales follow, until one takes distinctly longer: what all take is a step's fixed cost, and
    says nothing of the speed of the larger models that are advised.
    """
    per_token: dict[float, float] = {}
    for scale in (*scales(), *_LARGER):
        if scale in _LARGER and per_token[max(per_token)] >= _DISTINCT * min(per_token.values()):
            break
        per_token[scale] = measure(with_values(base, shape_values(*shape(base, scale))))
    return per_token
