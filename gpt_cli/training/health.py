"""Health of training: the first tensor that is not finite, and losses far above their running mean."""

import math

import torch
from torch import Tensor

from gpt_cli.errors import NonFiniteError
from gpt_cli.training.state import TrainingState

_SPAN = 100  # steps that a running mean covers, and the least number before it detects spikes
_SIGMAS = 6.0


def nonfinite_error(step: int, loss: float, grad_norms: Tensor | None, state: TrainingState) -> NonFiniteError:
    """The error with the first tensor that is not finite, after update `step` or (without norms) an evaluation."""
    bad = _first_bad(state, grad_norms, math.isfinite(loss))
    name = "loss" if grad_norms is not None else "validation loss"
    problem = f"the {name} is {loss} at step {step}" if bad is None else f"{bad} is not finite at step {step}"
    hint = "train into another run_dir with smaller learning rates (optim.lr, optim.adamw_lr); what was saved is good"
    if step == 0:
        hint = "no update was made: the initial weights are too large or too small, as model.init_std says"
    return NonFiniteError(f"{problem}: training stopped, nothing of it was saved", hint=hint)


def _first_bad(state: TrainingState, grad_norms: Tensor | None, loss_is_finite: bool) -> str | None:
    """The first tensor that is not finite, in the order optimizer state, weight, gradient; None if it is the loss.

    Each spoils the next in that order, which is that of time, too: an update with a bad gradient is not made. (It is on
    a GPU, where checking would sync; then the first spoilt tensor is named.)
    """
    weights, moments = state.tensors()
    for kind, tensors in (("optimizer state", moments), ("weight", weights)):
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.is_meta and not bool(torch.isfinite(tensor).all()):
                return f"{kind} {name}"
    if not loss_is_finite or grad_norms is None:
        return None
    names = [name for name, parameter in state.model.named_parameters() if parameter.requires_grad]
    bad = (~torch.isfinite(grad_norms)).tolist()
    return next((f"the gradient of {name}" for name, is_bad in zip(names, bad, strict=True) if is_bad), None)


class SpikeDetector:
    """Detects the beginning of a spike: a value far above the running mean of those before it.

    The mean and the deviation are exponential averages over about `_SPAN` steps. They are not part of a checkpoint:
    after a resume the first `_SPAN` values are never spikes.
    """

    def __init__(self, least: float = 0.12) -> None:
        """`least`: a smaller jump is none, as a share of the mean."""
        self.least = least
        self.seen = 0
        self.mean = 0.0
        self.variance = 0.0
        self.spiking = False

    def update(self, value: float) -> bool:
        """Add `value`; True if a spike begins with it. The values of a spike, clipped, move the mean like any other."""
        threshold = self.mean + max(_SIGMAS * math.sqrt(self.variance), self.least * self.mean)
        is_high = self.seen >= _SPAN and value > threshold
        begins, self.spiking = is_high and not self.spiking, is_high
        self.seen += 1
        weight = max(1.0 / self.seen, 1.0 / _SPAN)
        delta = min(value, threshold) - self.mean if self.seen > _SPAN else value - self.mean
        self.mean += weight * delta
        self.variance = (1.0 - weight) * (self.variance + weight * delta * delta)
        return begins
