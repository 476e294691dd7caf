"""The interface of what computes losses and gradients: `torch_engine.TorchEngine`, or the C engine (`cpu/train`).

Shapes: B sequences, T tokens each.
"""

from typing import Protocol

from torch import Tensor


class Engine(Protocol):
    """Losses and gradients of one model."""

    reuses_gradients: bool
    """True if `forward_backward` writes gradients where those of the call before lie."""

    def forward_backward(self, inputs: Tensor, targets: Tensor, loss_normalizer: int | Tensor, seed: int) -> Tensor:
        """(B, T), (B, T) of one micro-batch -> its share of the mean loss of the step, a scalar on the device.

        `loss_normalizer`: an int is the number of micro-batches, which divides the mean loss of this one; a tensor is
        the number of targets of the whole step that are not IGNORED, which divides its summed loss.

        Sets `grad`, which is None, of every trained parameter to the gradient of that share (under fp16 times the loss
        scale). Dropout is that of `seed`.
        """
        ...

    def summed_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """(B, T), (B, T) -> the sum of -log p(target) in nats over what is not IGNORED, a scalar on the device."""
        ...
