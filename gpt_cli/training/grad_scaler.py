"""Dynamic loss scaling: keeps fp16 gradients from vanishing (Micikevicius et al., 2018, section 3.2)."""

from collections.abc import Iterable

import torch
from torch import Tensor

GROWTH_INTERVAL = 2000  # updates without overflow before the scale doubles
_INITIAL_SCALE = 2.0**16
_CPU = torch.device("cpu")


class GradScaler:
    """Multiplies the loss before the backward pass and divides the gradients after it.

    When a gradient overflows, the update is skipped and the scale halves. Both are decided on the device, without a
    sync. Disabled, it does nothing.
    """

    def __init__(self, enabled: bool, device: torch.device = _CPU) -> None:
        self.enabled = enabled
        self.scale = torch.tensor(_INITIAL_SCALE if enabled else 1.0, device=device)
        self.good_updates = torch.tensor(0, device=device)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss to call `backward` on."""
        return loss * self.scale if self.enabled else loss

    @torch.no_grad()
    def unscale_(self, parameters: Iterable[Tensor]) -> None:
        """Divide the gradients by the scale."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.enabled and gradients:  # the scale is a power of two, and so is one over it
            torch._foreach_mul_(gradients, self.scale.reciprocal())

    @torch.no_grad()
    def update(self, grad_norm: Tensor) -> Tensor | None:
        """Adapt the scale to the norm of the unscaled gradients.

        Returns a scalar for the optimizer, 1 where the gradients overflowed, else 0; None where disabled.
        """
        if not self.enabled:
            return None
        finite = torch.isfinite(grad_norm)
        # Arithmetic on booleans: `where` would copy its constants to the device.
        good_updates = (self.good_updates + 1) * finite
        grows = good_updates == GROWTH_INTERVAL
        self.good_updates.copy_(good_updates * ~grows)
        self.scale.mul_(0.5 + 0.5 * finite + grows)
        return 1.0 - finite.float()
