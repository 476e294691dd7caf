"""Dynamic loss scaling: keeps fp16 gradients from vanishing (Micikevicius et al., 2018, section 3.2)."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_GROWTH_INTERVAL = 2000  # updates without overflow before the scale doubles
_INITIAL_SCALE = 2.0**16
_CPU = torch.device("cpu")


class LossScale:
    """Multiplies the loss before the backward pass and divides the gradients after it.

    When a gradient overflows, the update is taken back and the scale halves. That is decided on the device, where both
    scalars are: nobody waits for it. Switched off, it does nothing.
    """

    def __init__(self, enabled: bool, device: torch.device = _CPU) -> None:
        self.enabled = enabled
        self.scale = torch.tensor(_INITIAL_SCALE if enabled else 1.0, device=device)
        self.good_updates = torch.tensor(0, device=device)

    def apply(self, loss: Tensor) -> Tensor:
        """The loss to call `backward` on."""
        return loss * self.scale if self.enabled else loss

    @torch.no_grad()
    def remove(self, parameters: Iterable[Tensor]) -> None:
        """Bring the gradients back to their true size."""
        if self.enabled:  # the scale is a power of two, and so is one over it
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], self.scale.reciprocal())

    @torch.no_grad()
    def settle(self, grad_norm: Tensor, tensors: Sequence[Tensor], before: Sequence[Tensor]) -> None:
        """After an update: where the norm of the gradients is not finite, make `tensors` what they were; adapt."""
        if not self.enabled:
            return
        finite = torch.isfinite(grad_norm)
        for now, was in zip(tensors, before, strict=True):
            now.copy_(torch.where(finite, now, was))
        # Sums and products of truth values: `where` would have to bring its numbers to the device.
        good_updates = (self.good_updates + 1) * finite
        grows = good_updates == _GROWTH_INTERVAL
        self.good_updates.copy_(good_updates * ~grows)
        self.scale.mul_(0.5 + 0.5 * finite + grows)
