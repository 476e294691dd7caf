"""Batches as a pure function of (seed, step): resuming needs the step and nothing else.

Shapes: B sequences per step over all devices, M per micro-batch, T context_length.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gpt_cli.config import Config
from gpt_cli.distributed.reduce import contiguous_micro_batches
from gpt_cli.distributed.world import ALONE, World
from gpt_cli.errors import RequestError
from gpt_cli.shuffle import training_offset
from gpt_cli.terminal.words import plural
from gpt_cli.training.device_tokens import DeviceTokens

MicroBatches = list[tuple[Tensor, Tensor]]
"""(M, T) inputs and the (M, T) targets that follow them, of each micro-batch of a step."""


@dataclass(frozen=True)
class Batches:
    """The training windows of a corpus, in an order that depends on the seed and the step alone.

    An epoch cuts the text into non-overlapping windows and visits each exactly once, in an order of its own and
    from a starting phase of its own, so that window borders fall elsewhere each time.
    """

    tokens: DeviceTokens
    context_length: int
    batch_size: int
    micro_batch_size: int
    seed: int
    world: World = ALONE

    @classmethod
    def of(cls, config: Config, tokens: DeviceTokens, world: World = ALONE) -> "Batches":
        """The batches that `config` trains on, and this process's share of them.

        Raises RequestError when `tokens`, sizes or the number of processes do not allow them.
        """
        rows = micro_batch_size(config, world)
        refuse_batch(config, rows, world)
        return cls(tokens, config.model.context_length, config.train.batch_size, rows, config.seed, world)

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.context_length:
            raise RequestError(
                f"the training split has {plural(len(self.tokens), 'token')}: too few for one window of"
                f" model.context_length {self.context_length} and its targets",
                hint="give more text, a smaller model.context_length, or a smaller data.val_fraction",
            )
        assert self.batch_size % (self.micro_batch_size * self.world.size) == 0

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step trains on, over all devices."""
        return self.batch_size * self.context_length

    @property
    def steps_per_epoch(self) -> float:
        """The number of steps that train on each window once."""
        return len(self.tokens) / self.tokens_per_step

    def offsets(self, step: int) -> list[int]:
        """Offsets of the B windows of `step` in the text, over all devices."""
        first = step * self.batch_size
        windows = range(first, first + self.batch_size)
        return [training_offset(index, len(self.tokens), self.context_length, self.seed) for index in windows]

    def at(self, step: int) -> MicroBatches:
        """This rank's micro-batches of `step`: (M, T) inputs and the (M, T) targets that follow them."""
        offsets = rows_of_rank(self.offsets(step), self.micro_batch_size, self.world)
        windows = self.tokens.windows(offsets, self.context_length + 1)  # (B / processes, T + 1)
        return [(rows[:, :-1], rows[:, 1:]) for rows in windows.split(self.micro_batch_size)]


def rows_of_rank(rows: Sequence[int], size: int, world: World) -> Sequence[int]:
    """The rows of this process's micro-batches, of `size` rows each."""
    first, end = contiguous_micro_batches(world, len(rows) // size, world.rank)
    return rows[first * size : end * size]


def refuse_batch(config: Config, rows: int, world: World) -> None:
    """Raise RequestError if the batch cannot be divided into micro-batches of this many `rows`."""
    if refusal := batch_refusal(config.train.batch_size, rows, world.size, config.train.micro_batch_size):
        raise RequestError(refusal[0], hint=refusal[1])


def batch_refusal(batch_size: int, rows: int, devices: int, micro_batch_size: int | None) -> tuple[str, str] | None:
    """(reason, hint) if a batch cannot be divided into micro-batches of this many `rows`, else None.

    `micro_batch_size` is that of the config.
    """
    if batch_size % (rows * devices) == 0:
        return None
    if batch_size % devices:
        nearest = max(1, round(batch_size / devices)) * devices
        fewer = max(
            n for n in range(1, min(devices, batch_size + 1)) if batch_size % (n * (micro_batch_size or 1)) == 0
        )
        smaller = None if micro_batch_size is None else math.gcd(micro_batch_size, nearest // devices)
        override = "" if smaller is None else f" train.micro_batch_size={smaller}"
        return (
            f"train.batch_size ({batch_size}) must be a multiple of the number of devices ({devices})",
            f"train.batch_size={nearest}{override}, or --devices {fewer}",
        )
    return (
        f"train.batch_size ({batch_size}) must be a multiple of train.micro_batch_size ({rows}) times the number of"
        f" devices ({devices})",
        f"train.micro_batch_size={math.gcd(rows, batch_size // devices)}",
    )


def micro_batch_size(config: Config, world: World) -> int:
    """Sequences per forward pass of a process: as configured, or its share of a batch."""
    if config.train.micro_batch_size is not None or config.train.batch_size % world.size:
        return config.train.sequences_per_forward
    return config.train.batch_size // world.size
