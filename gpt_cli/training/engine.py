"""The interface of the engines, which compute losses and gradients: `torch_engine.TorchEngine`, and in C `cpu/train`.

Shapes: B sequences, T tokens each.
"""

from typing import Protocol

from torch import Tensor


class Engine(Protocol):
    """Losses and gradients of one model."""

    reuses_gradients: bool
    """True if each `forward_backward` overwrites the gradients of the call before."""

    def forward_backward(self, inputs: Tensor, targets: Tensor, loss_normalizer: int | Tensor, seed: int) -> Tensor:
        """(B, T), (B, T) of one micro-batch -> its share of the mean loss of the step, a scalar on the device.

        `loss_normalizer`: an int is the number of micro-batches, which divides the mean loss of this one; a tensor is
        the number of targets of the whole step that are not IGNORED, which divides its summed loss.

        Sets `grad`, None before, of every trained parameter to the gradient of that share (under fp16 times the loss
        scale). Dropout is a function of `seed`.
        """
        ...

    def summed_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """(B, T), (B, T) -> the sum of -log p(target) in nats over targets that are not IGNORED, on the device."""
        ...
