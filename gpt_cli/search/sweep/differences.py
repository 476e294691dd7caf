"""Differences between settings that seeds alone would not make.

Every setting is trained with the same seeds, and runs of one seed share their first weights and the order of their
batches, so a seed moves all settings alike. The loss is taken as setting + seed + noise (a two-way analysis of variance
without interaction), the noise estimated from all settings together. A difference to the best setting is told apart
where its 95 % interval of Student's t leaves out zero, at 5 % over all these comparisons together (Bonferroni).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

LEVEL = 0.05
METHOD = (
    "Differences are paired by seed; their noise is that of all settings together (two-way analysis of variance)."
    " Intervals are of Student's t, at 95 % for all comparisons with the best together (Bonferroni)."
)
ONE_SEED = "One seed each: --seeds 3 measures how far seeds alone move the loss."
ONE_SEED_YET = "One seed each so far: the runs that are left measure how far seeds alone move the loss."


@dataclass(frozen=True)
class Difference:
    """The loss of a setting minus that of the best; its interval is None where there are too few seeds."""

    mean: float
    low: float | None
    high: float | None

    @property
    def is_told_apart(self) -> bool | None:
        """True if seeds would not make it; None where nothing is known."""
        return None if self.low is None or self.high is None else not self.low <= 0.0 <= self.high

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "told_apart": self.is_told_apart}


def compare(losses: Sequence[Mapping[int, float]], best: int) -> list[Difference | None]:
    """The difference of each setting to setting `best`; None for `best` itself and for settings without losses.

    `losses` are {seed: loss} of each setting, which may lack seeds that others have.
    """
    means = [statistics.fmean(by_seed.values()) if by_seed else math.inf for by_seed in losses]
    fit = _fit(losses)
    comparisons = sum(bool(by_seed) for by_seed in losses) - 1
    differences: list[Difference | None] = []
    for index, by_seed in enumerate(losses):
        if index == best or not by_seed:
            differences.append(None)
            continue
        common = sorted(by_seed.keys() & losses[best].keys())
        pairs = [by_seed[seed] - losses[best][seed] for seed in common]
        mean = statistics.fmean(pairs) if pairs else means[index] - means[best]
        if fit is None or not pairs:
            differences.append(Difference(mean, None, None))
            continue
        noise, freedom = fit
        half = t_quantile(1.0 - LEVEL / (2.0 * comparisons), freedom) * noise * math.sqrt(2.0 / len(pairs))
        differences.append(Difference(mean, mean - half, mean + half))
    return differences


def _fit(losses: Sequence[Mapping[int, float]]) -> tuple[float, int] | None:
    """(standard deviation of the noise, its degrees of freedom) of the additive model; None without any to spare."""
    import numpy as np

    rows = [(index, seed, loss) for index, by_seed in enumerate(losses) for seed, loss in by_seed.items()]
    settings, seeds = sorted({row[0] for row in rows}), sorted({row[1] for row in rows})
    design = np.zeros((len(rows), len(settings) + len(seeds)))
    for number, (index, seed, _) in enumerate(rows):
        design[number, settings.index(index)] = 1.0
        design[number, len(settings) + seeds.index(seed)] = 1.0
    if not rows:
        return None
    observed = np.array([loss for _, _, loss in rows])
    solution, _, rank, _ = np.linalg.lstsq(design, observed, rcond=None)
    freedom = len(rows) - int(rank)
    if freedom < 1:
        return None
    residuals = observed - design @ solution
    return math.sqrt(float(residuals @ residuals) / freedom), freedom


def t_quantile(probability: float, freedom: int) -> float:
    """The value that Student's t of this many degrees of freedom stays below with `probability`, at least one half."""
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        low, high = high, 2.0 * high
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2.0


def t_cdf(t: float, freedom: int) -> float:
    """The probability of less than `t` >= 0 (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine = math.cos(angle) ** 2
    term, total = 1.0, 0.0
    if freedom % 2:
        term = math.cos(angle)
        for number in range(3, freedom + 1, 2):
            total += term
            term *= cosine * (number - 1) / number
        inside = 2.0 / math.pi * (angle + math.sin(angle) * total)
    else:
        for number in range(2, freedom + 1, 2):
            total += term
            term *= cosine * (number - 1) / number
        inside = math.sin(angle) * total
    return 0.5 + 0.5 * inside
