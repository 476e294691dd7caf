"""Dynamic loss scaling: keeps fp16 gradients from vanishing (Micikevicius et al., 2018, section 3.2)."""

from collections.abc import Iterable

import torch
from torch import Tensor

_GROWTH_INTERVAL = 2000  # updates without overflow before the scale doubles
_INITIAL_SCALE = 2.0**16


class LossScale:
    """Multiplies the loss before the backward pass and divides the gradients after it.

    When a gradient overflows, the update is skipped and the scale halves. Switched off, it does nothing and
    never waits for the device.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.scale = _INITIAL_SCALE if enabled else 1.0
        self.good_updates = 0

    def apply(self, loss: Tensor) -> Tensor:
        """The loss to call `backward` on."""
        return loss * self.scale if self.enabled else loss

    @torch.no_grad()
    def remove(self, parameters: Iterable[Tensor]) -> None:
        """Bring the gradients back to their true size."""
        if self.enabled:
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], 1.0 / self.scale)

    def accepts(self, grad_norm: Tensor) -> bool:
        """Whether the update may be made, given the norm of the gradients: it is finite. Adapts the scale.

        Switched off, it does not ask a device that would have to be waited for.
        """
        if not self.enabled:
            return grad_norm.device.type != "cpu" or bool(torch.isfinite(grad_norm))
        finite = bool(torch.isfinite(grad_norm))
        self.good_updates = self.good_updates + 1 if finite else 0
        if not finite:
            self.scale /= 2.0
        elif self.good_updates == _GROWTH_INTERVAL:
            self.scale, self.good_updates = self.scale * 2.0, 0
        return finite
