"""Health of training: the first tensor that is not finite, and losses far above their running mean."""

import math

import torch
from torch import Tensor

from gpt_cli.errors import UserError
from gpt_cli.training.state import TrainingState

_SPAN = 100  # steps that a running mean looks back on, and that it wants to have seen before it judges
_SIGMAS = 6.0


def nonfinite_error(step: int, loss: float, grad_norms: Tensor | None, state: TrainingState) -> UserError:
    """The error that says which tensor was bad first, given what update `step` saw, or (no norms) its evaluation."""
    bad = _first_bad(state, grad_norms, math.isfinite(loss))
    name = "loss" if grad_norms is not None else "validation loss"
    what = f"the {name} is {loss} at step {step}" if bad is None else f"{bad} is not finite at step {step}"
    return UserError(
        f"{what}: training stopped, nothing of it was saved",
        hint="train into another run_dir with a smaller optim.lr or optim.grad_clip; what was saved before is good",
    )


def _first_bad(state: TrainingState, grad_norms: Tensor | None, loss_is_finite: bool) -> str | None:
    """In the order in which one spoils the next: optimizer state, weight, loss, gradient; None if it is the loss.

    It is the order in time, too, because an update with a bad gradient is not made. (Where asking would make a GPU
    wait it is made, and the first of the spoilt tensors is named.)
    """
    weights, moments = state.tensors()
    for what, tensors in (("optimizer state", moments), ("weight", weights)):
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.is_meta and not bool(torch.isfinite(tensor).all()):
                return f"{what} {name}"
    if not loss_is_finite or grad_norms is None:
        return None
    names = [name for name, parameter in state.model.named_parameters() if parameter.requires_grad]
    bad = (~torch.isfinite(grad_norms)).tolist()
    return next((f"the gradient of {name}" for name, is_bad in zip(names, bad, strict=True) if is_bad), None)


class SpikeDetector:
    """Tells the beginning of a spike: a value far above the running mean of those before it.

    The mean and the deviation are exponential averages over about `_SPAN` steps. They are not part of a checkpoint:
    after a resume they are gathered anew, and until then nothing counts as a spike.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.mean = 0.0
        self.variance = 0.0
        self.spiking = False

    def update(self, value: float) -> bool:
        """Take in `value`; whether a spike begins with it. The values of a spike move the mean as any other do."""
        high = self.mean + _SIGMAS * max(math.sqrt(self.variance), 0.02 * self.mean)
        is_high = self.seen >= _SPAN and value > high
        begins, self.spiking = is_high and not self.spiking, is_high
        self.seen += 1
        weight = max(1.0 / self.seen, 1.0 / _SPAN)
        delta = min(value, high) - self.mean if self.seen > _SPAN else value - self.mean
        self.mean += weight * delta
        self.variance = (1.0 - weight) * (self.variance + weight * delta * delta)
        return begins
