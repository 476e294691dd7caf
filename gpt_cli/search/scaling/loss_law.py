"""L(N, D) = E + A / N^a + B / D^b (Hoffmann et al., 2022, approach 3), fitted by variable projection.

For given exponents the law is linear in E, A and B, which are found exactly, none of them negative; only the two
exponents are searched. Fits of parabolas to slices of equal computation (approach 2) are biased even without noise
(arXiv 2603.22339). N are parameters that multiply, D tokens trained on, losses in nats per token.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpt_cli.search.sweep.differences import t_quantile

Array = npt.NDArray[np.float64]

_LOWEST, _HIGHEST = 0.02, 2.0  # of the exponents
_STEPS = 25  # values of each exponent in a grid
_ROUNDS = 7  # grids, each a fifth as wide as the one before, around its best
_SUBSETS = [subset for size in (3, 2, 1) for subset in itertools.combinations(range(3), size)]
PARAMETERS = 5


@dataclass(frozen=True)
class LossLaw:
    """A fitted law."""

    e: float
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, n: float | Array, d: float | Array) -> Array:
        """Nats per token of a model of `n` parameters after `d` tokens."""
        return np.asarray(self.e + self.a / np.power(n, self.alpha) + self.b / np.power(d, self.beta))


def fit_law(n: Array, d: Array, loss: Array) -> LossLaw:
    """The law with the least squared error in `loss` over runs of `n` parameters and `d` tokens, (R,) each."""
    n0, d0 = float(np.exp(np.log(n).mean())), float(np.exp(np.log(d).mean()))  # so that A and B are of one size
    centre, half = np.log([_LOWEST * _HIGHEST] * 2) / 2, np.log(_HIGHEST / _LOWEST) / 2
    best: tuple[float, float, float, Array] | None = None
    for _ in range(_ROUNDS):
        alphas, betas = (
            np.exp(np.clip(np.linspace(middle - half, middle + half, _STEPS), np.log(_LOWEST), np.log(_HIGHEST)))
            for middle in centre
        )
        result = _best_of_grid(alphas, betas, n / n0, d / d0, loss)
        best = result if best is None or result[0] < best[0] else best
        centre, half = np.log([best[1], best[2]]), half / 5.0
    assert best is not None
    _, alpha, beta, (e, a, b) = best
    return LossLaw(float(e), float(a * n0**alpha), float(b * d0**beta), alpha, beta)


def _best_of_grid(alphas: Array, betas: Array, n: Array, d: Array, loss: Array) -> tuple[float, float, float, Array]:
    """(squared error, alpha, beta, (E, A, B)) of the best pair of exponents."""
    of_n, of_d = (base ** -exponents[:, None] for base, exponents in ((n, alphas), (d, betas)))  # (exponents, runs)
    grid = np.ones((len(alphas), len(betas), len(n), 3))
    grid[..., 1], grid[..., 2] = of_n[:, None], of_d
    terms = grid.reshape(-1, len(n), 3)  # a row for each pair of exponents
    gram = terms.transpose(0, 2, 1) @ terms + 1e-12 * np.eye(3)
    moments = terms.transpose(0, 2, 1) @ loss
    errors = np.full(len(terms), np.inf)
    solutions = np.zeros((len(terms), 3))
    open_pairs = np.arange(len(terms))  # pairs whose solution with all three terms has a negative one
    for subset in _SUBSETS:  # the non-negative solution is the plain one of some subset of the terms
        solution = np.zeros((len(open_pairs), 3))
        sub_gram, sub_moments = gram[open_pairs][:, subset][:, :, subset], moments[open_pairs][:, subset, None]
        solution[:, subset] = np.linalg.solve(sub_gram, sub_moments)[..., 0]
        error = np.square((terms[open_pairs] @ solution[..., None])[..., 0] - loss).sum(axis=1)
        better = (solution >= 0).all(axis=1) & (error < errors[open_pairs])
        errors[open_pairs[better]] = error[better]
        solutions[open_pairs[better]] = solution[better]
        if len(subset) == 3:
            open_pairs = open_pairs[~better]  # no subset of its terms fits better than one that is not negative
    index = int(errors.argmin())
    i, j = divmod(index, len(betas))
    return float(errors[index]), float(alphas[i]), float(betas[j]), solutions[index]


def bootstrap(n: Array, d: Array, loss: Array, law: LossLaw, draws: int, seed: int) -> list[LossLaw]:
    """Laws fitted to `draws` resamplings of the residuals of `law`."""
    rng = np.random.default_rng(seed)
    fitted = law.loss(n, d)
    residuals = (loss - fitted) * np.sqrt(len(loss) / max(1, len(loss) - PARAMETERS))
    return [fit_law(n, d, fitted + rng.choice(residuals, len(loss))) for _ in range(draws)]


def interval(value: float, draws: Sequence[float], runs: int, minimum: float = 0.0) -> tuple[float, float]:
    """A 90 % interval about `value`, by Student's t and the deviation of the `draws`; nothing in it is below `minimum`.

    Percentiles of the draws would cover the truth less often: five constants leave few degrees of freedom.
    """
    half = t_quantile(0.95, max(1, runs - PARAMETERS)) * float(np.std(draws))
    return max(minimum, value - half), value + half


def residual_noise(n: Array, d: Array, loss: Array, law: LossLaw) -> float:
    """The standard deviation of the residuals, in nats per token."""
    freedom = max(1, len(loss) - PARAMETERS)
    return float(np.sqrt(np.square(loss - law.loss(n, d)).sum() / freedom))


def best_split(law: LossLaw, seconds: float, fixed: float, per_parameter: float) -> tuple[float, float, float]:
    """(N, D, loss) of the lowest loss within `seconds`, where a token takes `fixed` + `per_parameter` * N seconds."""
    n = np.exp(np.linspace(np.log(1e3), np.log(1e13), 20_001))
    d = seconds / (fixed + per_parameter * n)
    losses = law.loss(n, np.maximum(d, 1.0))
    index = int(losses.argmin())
    return float(n[index]), float(d[index]), float(losses[index])
