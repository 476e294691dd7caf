"""The examples of each step, as a pure function of (seed, step).

Steps follow one another through epochs, each of which has every example once. Most steps lie within an epoch: they are
dealt from pools of examples sorted by length, so that a step needs little padding. Others cross into the next epoch.

Shapes: R examples, B of them per step.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpt_cli.shuffle import derive_seed, feistel_permute
from gpt_cli.training.feistel_array import permute_array

_POOL = 16  # most steps whose examples are sorted by length together


class ExampleOrder(Protocol):
    """An order of examples."""

    def at(self, step: int) -> list[int]:
        """The B examples of `step`, over all devices."""


def example_order(rules: int, widths: npt.NDArray[np.int64], batch_size: int, seed: int) -> ExampleOrder:
    """The order of examples of (R,) `widths` by these `data.rules`."""
    return (PoolsAcrossEpochs if rules == 1 else PoolsWithinEpochs)(widths, batch_size, seed)


@dataclass
class PoolsWithinEpochs:
    """The order by rules 2: no pool leaves its epoch, and no example is in a step twice unless all are.

    A step larger than the set has whole copies of it; only the rest of the step is dealt out. A round is the fewest
    epochs that end with a step. The steps of a round that cross into another epoch take their examples from a circle,
    one step after another, so that the two parts of an epoch that they take, which lie next to each other there,
    never overlap. The epoch has the rest of the circle in an order of its own.
    """

    widths: npt.NDArray[np.int64]
    batch_size: int
    seed: int
    _pool: tuple[tuple[int, int, int], list[int]] = field(default=((-1, 0, 0), []), init=False, repr=False)

    def at(self, step: int) -> list[int]:
        """The B examples of `step`, over all devices."""
        copies, size = divmod(self.batch_size, len(self.widths))
        examples = [example for _ in range(copies) for example in range(len(self.widths))]
        return examples + self._dealt(step, size) if size else examples

    def _dealt(self, step: int, size: int) -> list[int]:
        """The `size` examples of `step` beyond the whole copies of the set; fewer than there are, or all of them."""
        n = len(self.widths)
        round_, step = divmod(step, n // math.gcd(n, size))
        epoch, place = divmod(step * size, n)
        if place + size > n:
            crossing: list[int] = self._circle(round_, np.arange(epoch * size, (epoch + 1) * size)).tolist()
            return crossing
        head = -epoch * n % size  # examples of the epoch in the step that began before it
        n_step, number = (n - head) // size, (place - head) // size
        n_pool = -(-n_step // _POOL)
        pool = ((number + 1) * n_pool - 1) // n_step
        first, end = n_step * pool // n_pool, n_step * (pool + 1) // n_pool
        if self._pool[0] != (round_, epoch, pool):
            places = permute_array(
                np.arange(first * size, end * size), n_step * size, derive_seed(self.seed, "order", round_, epoch)
            )
            tail = n - head - n_step * size  # examples of the epoch in the step that ends after it
            members = self._circle(round_, epoch * size + tail + places)
            self._pool = (round_, epoch, pool), _sorted(members, self.widths)
        key = derive_seed(self.seed, "pool", round_, epoch, pool)
        begin = feistel_permute(number - first, end - first, key) * size
        return self._pool[1][begin : begin + size]

    def _circle(self, round_: int, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The examples at `places` of the circle of a round."""
        n = len(self.widths)
        return permute_array(places % n, n, derive_seed(self.seed, "circle", round_))


@dataclass
class PoolsAcrossEpochs:
    """The order by rules 1: a pool of a small set spans many epochs, so a step has few examples many times."""

    widths: npt.NDArray[np.int64]
    batch_size: int
    seed: int
    _pool: tuple[int, list[int]] = field(default=(-1, []), init=False, repr=False)

    def at(self, step: int) -> list[int]:
        """The B examples of `step`, over all devices."""
        pool, position = divmod(step, _POOL)
        if self._pool[0] != pool:
            size = _POOL * self.batch_size
            members = [self._example(index) for index in range(pool * size, (pool + 1) * size)]
            self._pool = pool, _sorted(np.array(members), self.widths)
        first = feistel_permute(position, _POOL, derive_seed(self.seed, "pool", pool)) * self.batch_size
        return self._pool[1][first : first + self.batch_size]

    def _example(self, index: int) -> int:
        epoch, position = divmod(index, len(self.widths))
        return feistel_permute(position, len(self.widths), derive_seed(self.seed, "order", epoch))


def _sorted(examples: npt.NDArray[np.int64], widths: npt.NDArray[np.int64]) -> list[int]:
    """The examples by width; those of equal width keep their order."""
    ordered: list[int] = examples[np.argsort(widths[examples], kind="stable")].tolist()
    return ordered
