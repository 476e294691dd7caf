"""What a step does with its gradients: their true size, clipping, the optimizer, the average of the weights.

As written it takes numbers. Given scalars on the device instead, nothing in it changes from step to step but tensors,
and it asks for none of their values: it can be compiled as one graph, or recorded.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gpt_cli.config import OptimConfig
from gpt_cli.runtime.compilation import compiler_errors
from gpt_cli.training.state import TrainingState

COMPILER = "inductor"


def update(state: TrainingState, optim: OptimConfig, step: int, lr_multiplier: float) -> Tensor:
    """Make update `step` (from 0), at `lr_multiplier` times the peak learning rates; the gradients are used up.

    Returns the (P,) norm of each parameter's gradient before clipping, on the device.
    """
    weight = state.average.weight(step)
    if state.way.update is not None:
        try:
            return state.way.update(lr_multiplier, weight)
        except compiler_errors() as error:  # at a first call, then, before anything was changed
            state.way.give_up_update(error)
    return make_update(state, most_norm(optim), lr_multiplier, weight)


def make_update(state: TrainingState, max_norm: float, lr_multiplier: float | Tensor, weight: float | Tensor) -> Tensor:
    """`update`, with the `weight` of the average; both numbers, or both scalars on the device."""
    parameters, scale = state.parameters, state.loss_scale
    scale.remove(parameters)
    grad_norms = torch.stack(torch._foreach_norm([p.grad for p in parameters if p.grad is not None]))
    grad_norm = torch.linalg.vector_norm(grad_norms)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, grad_norm)
    if scale.enabled or isinstance(lr_multiplier, Tensor) or may_be_made(grad_norm):
        changing = state.changing() if scale.enabled else []
        before = [tensor.clone() for tensor in changing]
        state.optimizer.step(lr_multiplier)
        state.average.take_in(weight)
        scale.settle(grad_norm, changing, before)
    return grad_norms


def may_be_made(grad_norm: Tensor) -> bool:
    """Whether the norm of the gradients is finite; a device that would have to be waited for is not asked."""
    return grad_norm.device.type != "cpu" or bool(torch.isfinite(grad_norm))


def most_norm(optim: OptimConfig) -> float:
    """The norm that gradients are clipped to."""
    return math.inf if optim.grad_clip is None else optim.grad_clip


class TensorUpdate:
    """`make_update` of scalars on the device, compiled as one graph by `backend`, or as written for None.

    One that cannot be compiled raises when it is first computed, before anything is changed.
    """

    def __init__(self, state: TrainingState, optim: OptimConfig, backend: str | None = None) -> None:
        device = state.parameters[0].device
        self.lr_multiplier, self.weight = torch.zeros((), device=device), torch.zeros((), device=device)
        written: Callable[[Tensor, Tensor], Tensor] = partial(make_update, state, most_norm(optim))
        self._make = written if backend is None else torch.compile(written, fullgraph=True, backend=backend)

    def set(self, lr_multiplier: float, weight: float) -> None:
        """The numbers of the next update; nothing is sent that could be waited for, they are part of a launch."""
        self.lr_multiplier.fill_(lr_multiplier)
        self.weight.fill_(weight)

    def compute(self) -> Tensor:
        """Make the update with the numbers that are on the device."""
        return self._make(self.lr_multiplier, self.weight)

    def __call__(self, lr_multiplier: float, weight: float) -> Tensor:
        """Make the update with these numbers: the (P,) norms of the gradients."""
        self.set(lr_multiplier, weight)
        return self.compute()
