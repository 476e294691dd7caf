"""Which parameter is updated how: groups, AdamW, Muon, and their state by parameter name."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpt_cli.config import ModelConfig, OptimConfig
from gpt_cli.model.count import is_hidden_matrix
from gpt_cli.model.gpt import GPT
from gpt_cli.training.muon import Muon


class Optimizer:
    """AdamW for every parameter, or Muon for the hidden matrices and AdamW for the rest, behind one `step`.

    AdamW decays matrices and embeddings, never vectors (gains, biases). State is kept by parameter name, so a
    checkpoint does not depend on the order of parameters.
    """

    def __init__(self, model: GPT, config: OptimConfig, matmul_dtype: torch.dtype = torch.float32) -> None:
        parameters = dict(model.named_parameters())
        matrices = {n: p for n, p in parameters.items() if is_hidden_matrix(n, tuple(p.shape))}
        if config.name == "adamw":
            matrices = {}
        self.adamw_parameters = {n: p for n, p in parameters.items() if n not in matrices}
        self.adamw_lr = config.lr if config.name == "adamw" else config.adamw_lr
        groups: list[dict[str, Any]] = [
            {"params": [p for p in self.adamw_parameters.values() if p.dim() >= 2]},
            {"params": [p for p in self.adamw_parameters.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            groups,
            lr=self.adamw_lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.muon = Muon(
            matrices,
            fused_rows(model.config),
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            dtype=matmul_dtype,
        )

    def step(self, lr_multiplier: float) -> None:
        """One update of every parameter, at `lr_multiplier` times the peak learning rates."""
        for group in self.adamw.param_groups:
            group["lr"] = self.adamw_lr * lr_multiplier
        self.adamw.step()
        if self.muon.parameters:
            self.muon.step(lr_multiplier)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.adamw.zero_grad(set_to_none=True)
        for parameter in self.muon.parameters.values():
            parameter.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """The state as named tensors: `exp_avg/NAME`, `exp_avg_sq/NAME`, `step/NAME`, `momentum/NAME`."""
        tensors = {f"momentum/{name}": buffer for name, buffer in self.muon.buffers.items()}
        for name, parameter in self.adamw_parameters.items():
            for key, value in self._adamw_state(parameter).items():
                tensors[f"{key}/{name}"] = value
        return tensors

    @torch.no_grad()
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state that `state_tensors` gave; the names must be the same."""
        for key, value in self.state_tensors().items():
            value.copy_(tensors[key])

    def _adamw_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """AdamW's state of one parameter, made as its first step would make it if there was none."""
        state: dict[str, Tensor] = self.adamw.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def fused_rows(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Parameter name -> the rows of the matrices that it stacks."""
    q, kv, hidden = config.n_embd, config.kv_heads * config.head_dim, config.mlp_hidden
    rows: dict[str, tuple[int, ...]] = {}
    for layer in range(config.n_layer):
        rows[f"blocks.{layer}.attention.qkv.weight"] = (q, kv, kv)
        rows[f"blocks.{layer}.mlp.gate_up.weight"] = (hidden, hidden)
    return rows
