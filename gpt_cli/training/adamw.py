"""AdamW: Adam whose weight decay does not pass through its moments (Loshchilov and Hutter, 2019, algorithm 2)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gpt_cli.distributed.shard import Zeros, zeros_of


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
        zeros: Zeros = zeros_of,
    ) -> None:
        """`lr_scales`: parameter name -> factor on its learning rate, where that is not 1."""
        self.parameters = dict(parameters)
        self.lr, self.betas, self.eps = lr, betas, eps
        self._groups: dict[tuple[float, float], dict[str, Tensor]] = {}  # (learning rate, decay) -> parameters
        for name, parameter in parameters.items():
            settings = (lr * (lr_scales or {}).get(name, 1.0), weight_decay if parameter.dim() >= 2 else 0.0)
            self._groups.setdefault(settings, {})[name] = parameter
        self.exp_avg = {name: zeros(name, p) for name, p in parameters.items()}
        self.exp_avg_sq = {name: zeros(name, p) for name, p in parameters.items()}
        device = next(iter(parameters.values())).device
        self.n_step = torch.zeros((), dtype=torch.float32, device=device)  # the kernel wants a float, on the device

    @torch.no_grad()
    def step(self, lr_multiplier: float, found_inf: Tensor | None = None) -> None:
        """Update every parameter that has a gradient; where the scalar `found_inf` is 1, change nothing (fp16)."""
        self.n_step += 1
        for (lr, weight_decay), parameters in self._groups.items():
            names = [name for name, p in parameters.items() if p.grad is not None]
            if names:
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
                    found_inf=found_inf,
                )
        if found_inf is not None:
            self.n_step -= found_inf

    def state_tensors(self) -> dict[str, Tensor]:
        """The state itself, as named tensors: `n_step`, `exp_avg/NAME` and `exp_avg_sq/NAME`."""
        return {
            "n_step": self.n_step,
            **{f"exp_avg/{name}": tensor for name, tensor in self.exp_avg.items()},
            **{f"exp_avg_sq/{name}": tensor for name, tensor in self.exp_avg_sq.items()},
        }
