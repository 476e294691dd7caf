"""What a step does with its gradients: their true size, clipping, the optimizer, the average of the weights.

As written it takes numbers. Given scalars on the device instead, nothing in it changes from step to step but tensors,
and it asks for none of their values: it can be compiled as one graph, or recorded.
"""

import math
from functools import partial

import torch
from torch import Tensor

from gpt_cli.config import OptimConfig
from gpt_cli.training.state import TrainingState
from gpt_cli.training.way import UpdateBy


def update(state: TrainingState, optim: OptimConfig, step: int, lr_multiplier: float) -> Tensor:
    """Make update `step` (from 0), at `lr_multiplier` times the peak learning rates; the gradients are used up.

    Returns the (P,) norm of each parameter's gradient before clipping, on the device.
    """
    weight = state.average.weight(step)
    if state.way.update is None:
        return make_update(state, most_norm(optim), lr_multiplier, weight)
    return state.way.update(lr_multiplier, weight)


def make_update(state: TrainingState, max_norm: float, lr_multiplier: float | Tensor, weight: float | Tensor) -> Tensor:
    """`update`, with the `weight` of the average; both numbers, or both scalars on the device."""
    parameters, scale = state.parameters, state.loss_scale
    scale.remove(parameters)
    grad_norms = torch.stack(torch._foreach_norm([p.grad for p in parameters if p.grad is not None]))
    grad_norm = torch.linalg.vector_norm(grad_norms)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, grad_norm)
    if scale.enabled or isinstance(lr_multiplier, Tensor) or may_be_made(grad_norm):
        before = scale.before(state.changing())
        state.optimizer.step(lr_multiplier)
        state.average.take_in(weight)
        scale.settle(grad_norm, state.changing(), before)
    return grad_norms


def may_be_made(grad_norm: Tensor) -> bool:
    """Whether the norm of the gradients is finite; a device that would have to be waited for is not asked."""
    return grad_norm.device.type != "cpu" or bool(torch.isfinite(grad_norm))


def most_norm(optim: OptimConfig) -> float:
    """The norm that gradients are clipped to."""
    return math.inf if optim.grad_clip is None else optim.grad_clip


def by_tensors(state: TrainingState, optim: OptimConfig, backend: str | None) -> UpdateBy:
    """`make_update` of scalars on the device, compiled as one graph by `backend`, or as written for None.

    One that cannot be compiled raises when it is first called, before anything is changed.
    """
    device = state.parameters[0].device
    rate, weight = torch.zeros((), device=device), torch.zeros((), device=device)
    written = partial(make_update, state, most_norm(optim))
    compute = written if backend is None else torch.compile(written, fullgraph=True, backend=backend)

    def call(lr_multiplier: float, average_weight: float) -> Tensor:
        rate.fill_(lr_multiplier)  # numbers of a kernel's launch: nothing is sent that could be waited for
        weight.fill_(average_weight)
        return compute(rate, weight)

    return call
