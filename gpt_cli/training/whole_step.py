"""A whole training step as one CUDA graph: forward, loss, backward, clipping and update are one launch.

A small model's step is hundreds of kernels of a few microseconds, each of which takes the CPU as long to launch. What
is recorded once, with the addresses it worked on, is replayed without it (NVIDIA's CUDA graphs). So whatever changes
from step to step must come in through tensors that stay where they are: the batch, the learning rates' multiplier,
the average's weight. Noise does, too: replayed kernels draw from the generator as it was seeded before the replay.

Shapes: B sequences of a step, T tokens of each, P parameters.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gpt_cli.config import Config
from gpt_cli.order import derive_seed
from gpt_cli.runtime.device import Runtime
from gpt_cli.runtime.graph import record
from gpt_cli.runtime.memory import is_out_of_memory
from gpt_cli.training.batches import MicroBatches
from gpt_cli.training.state import TrainingState
from gpt_cli.training.update import TensorUpdate
from gpt_cli.training.way import WHOLE, Loss, Step, gradients

_WARM_UPS = 2  # steps as written before one is recorded: what compiles, loads or measures itself does it there

Computation = Callable[[], tuple[Tensor, Tensor]]
"""Makes a step out of tensors that stay where they are: the loss, the (P,) norms of the gradients."""


class WholeStep:
    """In the place of `loop.train_step`, for steps of one micro-batch: recorded at the third step, then replayed.

    Its first two are computed kernel by kernel, and are steps as good as any other, so a run that goes on in a new
    process computes the same bits.
    """

    def __init__(self, state: TrainingState, runtime: Runtime, loss: Loss, update: TensorUpdate) -> None:
        self.state, self.runtime, self.loss, self.update = state, runtime, loss, update
        self.learning = [p for p in state.parameters if p.requires_grad]
        self._batch: list[Tensor] | None = None  # (B, T) inputs and targets, where they are read
        self._replay: Computation | None = None
        self._taken = 0

    def __call__(
        self,
        plain: Step,
        state: TrainingState,
        micro_batches: MicroBatches,
        config: Config,
        step: int,
        lr_multiplier: float,
        runtime: Runtime,
    ) -> tuple[Tensor, Tensor]:
        """What `plain` does with these arguments; `plain` itself where there are several micro-batches.

        A step that cannot be recorded or replayed is given up with a note, and is made by `plain`.
        """
        arguments = (state, micro_batches, config, step, lr_multiplier, runtime)
        if len(micro_batches) != 1:
            return plain(*arguments)
        try:
            seed = derive_seed(config.seed, "noise", step, 0)
            return self.take(micro_batches[0], lr_multiplier, state.average.weight(step), seed)
        except RuntimeError as error:
            recorded = self._taken == _WARM_UPS  # takes memory of its own; a step as written may have enough
            self.forget()
            if (is_out_of_memory(error) and not recorded) or not state.way.give_up(error):
                raise
        return plain(*arguments)

    def take(
        self, batch: tuple[Tensor, Tensor], lr_multiplier: float, weight: float, seed: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """One step on (B, T) inputs and targets: its loss and the (P,) norms of the gradients, on the device.

        Its noise is that of `seed`; None where it has none, and leaves the generator alone.
        """
        if self._batch is None:
            self._batch = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in batch]
        for kept, new in zip(self._batch, batch, strict=True):
            kept.copy_(new)
        self.update.set(lr_multiplier, weight)
        if self._replay is None and self._taken == _WARM_UPS:
            self._replay = record(self._compute)
        if seed is not None:
            torch.manual_seed(seed)  # after recording, in case that draws
        if self._replay is None:
            self._taken += 1
            return self._compute()
        loss, grad_norms = self._replay()
        return loss.clone(), grad_norms.clone()  # read when the next step has written over them

    def forget(self) -> None:
        """Let go of what was recorded, and of its memory."""
        self._replay, self._taken = None, 0
        self.state.optimizer.zero_grad()

    def _compute(self) -> tuple[Tensor, Tensor]:
        assert self._batch is not None
        state = self.state
        with state.way.attending():
            with self.runtime.autocast():
                loss = self.loss(*self._batch)
            found = gradients(state.loss_scale.apply(loss), self.learning, WHOLE)
        for parameter, gradient in zip(self.learning, found, strict=True):
            parameter.grad = gradient
        grad_norms = self.update.compute()
        state.optimizer.zero_grad()
        return loss.detach(), grad_norms
