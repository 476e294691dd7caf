"""AdamW: Adam whose weight decay does not pass through its moments (Loshchilov and Hutter, 2019, algorithm 2)."""

from collections.abc import Mapping

import torch
from torch import Tensor


class AdamW:
    """AdamW over torch's fused kernel: one call for all parameters, which matters when they are small.

    Matrices and embeddings decay, vectors (gains, biases) never do. Equal to `torch.optim.AdamW`, which takes a
    second to load a compiler at its first step, and keeps its state by position instead of by name.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        lr_scales: Mapping[str, float] | None = None,
    ) -> None:
        """`lr_scales`: parameter name -> what its learning rate is multiplied by, where that is not 1."""
        self.parameters = dict(parameters)
        self.lr, self.betas, self.eps = lr, betas, eps
        self._groups: dict[tuple[float, float], dict[str, Tensor]] = {}  # (learning rate, decay) -> parameters
        for name, parameter in parameters.items():
            settings = (lr * (lr_scales or {}).get(name, 1.0), weight_decay if parameter.dim() >= 2 else 0.0)
            self._groups.setdefault(settings, {})[name] = parameter
        self.exp_avg = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.exp_avg_sq = {name: torch.zeros_like(p) for name, p in parameters.items()}
        device = next(iter(parameters.values())).device
        self.n_step = torch.zeros((), dtype=torch.float32, device=device)  # the kernel wants a float, on the device

    @torch.no_grad()
    def step(self, lr_multiplier: float | Tensor) -> None:
        """Update every parameter that has a gradient; `lr_multiplier` is a number or a scalar on the device."""
        self.n_step += 1
        for (lr, weight_decay), parameters in self._groups.items():
            names = [name for name, p in parameters.items() if p.grad is not None]
            if names and isinstance(lr_multiplier, Tensor):
                self._by_formula([parameters[name] for name in names], names, lr * lr_multiplier, weight_decay)
            elif names:
                torch._fused_adamw_(
                    [parameters[name] for name in names],
                    [p.grad for p in parameters.values() if p.grad is not None],
                    [self.exp_avg[name] for name in names],
                    [self.exp_avg_sq[name] for name in names],
                    [],
                    [self.n_step] * len(names),
                    lr=lr * lr_multiplier,
                    beta1=self.betas[0],
                    beta2=self.betas[1],
                    weight_decay=weight_decay,
                    eps=self.eps,
                    amsgrad=False,
                    maximize=False,
                )

    def _by_formula(self, parameters: list[Tensor], names: list[str], lr: Tensor, weight_decay: float) -> None:
        """What the fused kernel does, which no compiler knows, by operations that a compiler makes one kernel of."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        averages, squares = [self.exp_avg[name] for name in names], [self.exp_avg_sq[name] for name in names]
        beta1, beta2 = self.betas
        if weight_decay:
            torch._foreach_mul_(parameters, 1.0 - lr * weight_decay)
        torch._foreach_lerp_(averages, gradients, 1.0 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)
        spread = torch._foreach_sqrt(squares)
        torch._foreach_div_(spread, torch.sqrt(1.0 - beta2**self.n_step))
        torch._foreach_add_(spread, self.eps)
        updates = torch._foreach_div(averages, spread)
        torch._foreach_mul_(updates, -lr / (1.0 - beta1**self.n_step))
        torch._foreach_add_(parameters, updates)
