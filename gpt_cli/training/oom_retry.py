"""Retry a step that ran out of memory with smaller micro-batches: the same batch in more passes."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from gpt_cli.errors import UserError
from gpt_cli.runtime.oom import is_out_of_memory
from gpt_cli.training.batches import MicroBatches
from gpt_cli.training.metrics_logger import MetricsLogger
from gpt_cli.training.state import TrainingState

P = ParamSpec("P")
Step = Callable[Concatenate[TrainingState, MicroBatches, P], tuple[Tensor, Tensor]]


class OOMRetry:
    """Runs steps with micro-batches that fit in memory; after a failure all later steps use the smaller size, too.

    The size is not saved: a resumed run finds it again.
    """

    def __init__(self, micro_batch_size: int, logger: MetricsLogger) -> None:
        self.micro_batch_size = micro_batch_size
        self.logger = logger

    def run(
        self, step: Step[P], state: TrainingState, micro_batches: MicroBatches, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Tensor, Tensor]:
        """`step(state, micro_batches, ...)`, with the rows of `micro_batches` regrouped so that it fits.

        Raises UserError when a single sequence does not fit either.
        """
        while True:
            try:
                return step(state, resplit(micro_batches, self.micro_batch_size), *args, **kwargs)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.micro_batch_size == 1:
                    raise UserError(
                        "out of memory: not even a single sequence fits into a training step; nothing saved is lost",
                        hint="train a smaller model.context_length, n_embd or n_layer in another run_dir",
                    ) from error
            # Outside of `except`, where the error, its frames and their activations are freed.
            state.optimizer.zero_grad()
            if state.model.head.weight.is_cuda:
                torch.cuda.empty_cache()
            smaller = next_smaller(self.micro_batch_size)
            self.logger.ran_out_of_memory(self.micro_batch_size, smaller)
            self.micro_batch_size = smaller


def next_smaller(micro_batch_size: int) -> int:
    """The largest proper divisor: equal micro-batches stay equal, and the mean of their losses the mean of all."""
    return next(n for n in range(micro_batch_size // 2, 0, -1) if micro_batch_size % n == 0)


def resplit(micro_batches: MicroBatches, rows: int) -> MicroBatches:
    """The same rows in the same order, `rows` per micro-batch, a divisor of their present number."""
    return [
        pair for inputs, targets in micro_batches for pair in zip(inputs.split(rows), targets.split(rows), strict=True)
    ]
