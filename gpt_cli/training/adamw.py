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
    ) -> None:
        self.parameters = dict(parameters)
        self.lr, self.betas, self.eps = lr, betas, eps
        decaying = {name: p for name, p in parameters.items() if p.dim() >= 2}
        others = {name: p for name, p in parameters.items() if p.dim() < 2}
        self._groups = [(decaying, weight_decay), (others, 0.0)]
        self.exp_avg = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.exp_avg_sq = {name: torch.zeros_like(p) for name, p in parameters.items()}
        device = next(iter(parameters.values())).device
        self.n_step = torch.zeros((), dtype=torch.float32, device=device)  # the kernel wants a float, on the device

    @torch.no_grad()
    def step(self, lr_multiplier: float) -> None:
        """Update every parameter that has a gradient."""
        self.n_step += 1
        for parameters, weight_decay in self._groups:
            names = [name for name, p in parameters.items() if p.grad is not None]
            if names:
                torch._fused_adamw_(
                    [parameters[name] for name in names],
                    [p.grad for p in parameters.values() if p.grad is not None],
                    [self.exp_avg[name] for name in names],
                    [self.exp_avg_sq[name] for name in names],
                    [],
                    [self.n_step] * len(names),
                    lr=self.lr * lr_multiplier,
                    beta1=self.betas[0],
                    beta2=self.betas[1],
                    weight_decay=weight_decay,
                    eps=self.eps,
                    amsgrad=False,
                    maximize=False,
                )
