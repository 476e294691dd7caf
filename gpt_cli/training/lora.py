"""LoRA (Hu et al., 2021): of a matrix W only the change B A is trained, of low rank.

W itself is kept at base + alpha / rank * B A, so the model is what it always was: it evaluates, samples and is saved
merged, without knowing. The gradients of A and B follow from that of W by the chain rule.

Shapes: O outputs, I inputs, R rank.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from gpt_cli.capabilities import LORA
from gpt_cli.config import LoraConfig, OptimConfig
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.model.sequence_classifier import HEAD, SequenceClassifier
from gpt_cli.shuffle import derive_seed
from gpt_cli.training.adamw import AdamW

_MODULES = {
    "qkv": ("attention.qkv",),
    "out": ("attention.out",),
    "up": ("mlp.up", "mlp.gate_up"),
    "down": ("mlp.down",),
}


class LoRA:
    """In the place of a `MuonAdamW`: AdamW on A and B of each target; every other parameter stays as it is.

    A begins normal with variance 1 / I, B at zero, so training begins at the model that is there. The state holds the
    base matrices, too: to go on, a run needs nothing of the run that it began from.

    Raises RequestError for a model with options that it does not know.
    """

    def __init__(self, model: GPT, config: LoraConfig, optim: OptimConfig, seed: int) -> None:
        assert config.rank is not None
        if (reason := LORA.refusal(model.config)) is not None:
            raise RequestError(
                f"lora.rank: a model with {reason} is not known to LoRA", hint="train it without lora.rank"
            )
        targets = tuple(f".{module}.weight" for target in config.targets for module in _MODULES[target])
        self.model = model
        self.weights = {name: p for name, p in model.named_parameters() if name.endswith(targets)}
        # A head of classes is as new as A and B are, and is trained as it is.
        head = {HEAD: model.head.weight} if isinstance(model, SequenceClassifier) else {}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in self.weights or name in head)
        self.base = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.scale = config.alpha / config.rank
        generator = torch.Generator().manual_seed(derive_seed(seed, "lora"))
        factors: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            outputs, inputs = weight.shape
            factors[f"{name}/a"] = (torch.randn(config.rank, inputs, generator=generator) * inputs**-0.5).to(weight)
            factors[f"{name}/b"] = torch.zeros(outputs, config.rank).to(weight)
        self.adamw = AdamW(
            {**factors, **head},
            lr=optim.peak_lr if optim.name == "adamw" else optim.adamw_lr,
            betas=optim.betas,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
        )

    @torch.no_grad()
    def step(self, lr_multiplier: float, found_inf: Tensor | None = None) -> None:
        """One update of every A (R, I) and B (O, R) from the gradients (O, I) of their matrices; see `MuonAdamW`."""
        factors = self.adamw.parameters
        for name, weight in self.weights.items():
            assert weight.grad is not None
            a, b = factors[f"{name}/a"], factors[f"{name}/b"]
            a.grad = self.scale * (b.mT @ weight.grad)
            b.grad = self.scale * (weight.grad @ a.mT)
        self.adamw.step(lr_multiplier, found_inf)
        self.merge()

    @torch.no_grad()
    def merge(self) -> None:
        """Put base + scale * B A where the model computes with it."""
        for name, weight in self.weights.items():
            a, b = self.adamw.parameters[f"{name}/a"], self.adamw.parameters[f"{name}/b"]
            weight.copy_(torch.addmm(self.base[name], b, a, alpha=self.scale))

    def zero_grad(self) -> None:
        for parameter in (*self.model.parameters(), *self.adamw.parameters.values()):
            parameter.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """The state as named tensors: `n_step`, and for each target `base/`, `lora/`, `exp_avg/` and `exp_avg_sq/`."""
        return {
            "n_step": self.adamw.n_step,
            **{f"base/{name}": tensor for name, tensor in self.base.items()},
            **{f"lora/{name}": tensor for name, tensor in self.adamw.parameters.items()},
            **{f"exp_avg/{name}": tensor for name, tensor in self.adamw.exp_avg.items()},
            **{f"exp_avg_sq/{name}": tensor for name, tensor in self.adamw.exp_avg_sq.items()},
        }

    @torch.no_grad()
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state that `state_tensors` gave; the names must be the same."""
        for key, value in self.state_tensors().items():
            value.copy_(tensors[key])
