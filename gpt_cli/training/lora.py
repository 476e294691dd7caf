"""LoRA (Hu et al., 2021): only a low-rank change B A of each matrix W is trained.

W itself is set to base + alpha / rank * B A after each update, so evaluation, samples and checkpoints see merged
weights. The gradients of A and B follow from that of W by the chain rule.

Shapes: O outputs, I inputs, R rank.
"""

import torch
from torch import Tensor

from gpt_cli.capabilities import LORA
from gpt_cli.config import LoraConfig, OptimConfig
from gpt_cli.errors import RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.model.sequence_classifier import HEAD, SequenceClassifier
from gpt_cli.shuffle import derive_seed
from gpt_cli.training.adamw import AdamW


class LoRA:
    """An optimizer like `MuonAdamW`: AdamW on A and B of each target; every other parameter is frozen.

    A starts normal with variance 1 / I, B at zero, so training starts from the given model. The state includes the base
    matrices: a resume does not need the run that they came from.

    Raises RequestError for a model with options that LoRA does not support.
    """

    def __init__(self, model: GPT, config: LoraConfig, optim: OptimConfig, seed: int) -> None:
        assert config.rank is not None
        if (reason := LORA.refusal(model.config)) is not None:
            raise RequestError(
                f"lora.rank: a model with {reason} is not known to LoRA", hint="train it without lora.rank"
            )
        self.model = model
        self.weights = {name: p for name, p in model.named_parameters() if name.endswith(config.suffixes)}
        # A classification head is newly initialized: it is trained in full.
        head = {HEAD: model.head.weight} if isinstance(model, SequenceClassifier) else {}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in self.weights or name in head)
        largest = max(min(weight.shape) for weight in self.weights.values())
        if config.rank > largest:
            raise RequestError(
                f"lora.rank {config.rank}: the matrices have a rank of at most {largest}, so nothing is saved by it",
                hint=f"lora.rank={min(8, largest)}, or train it without lora.rank",
            )
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
        """Write base + scale * B A into the model."""
        for name, weight in self.weights.items():
            a, b = self.adamw.parameters[f"{name}/a"], self.adamw.parameters[f"{name}/b"]
            weight.copy_(torch.addmm(self.base[name], b, a, alpha=self.scale))

    def zero_grad(self) -> None:
        for parameter in (*self.model.parameters(), *self.adamw.parameters.values()):
            parameter.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """The state itself, as named tensors: that of AdamW, and `base/NAME` and `lora/NAME`."""
        return {
            **self.adamw.state_tensors(),
            **{f"base/{name}": tensor for name, tensor in self.base.items()},
            **{f"lora/{name}": tensor for name, tensor in self.adamw.parameters.items()},
        }
