"""The engine by torch (`training/engine.py`), eager or by torch.compile, and the loss of each task.

Shapes: B sequences or texts per micro-batch, T tokens each.
"""

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from gpt_cli.errors import Notify, first_line
from gpt_cli.model.chunked_loss import chunked_loss, needs_chunking
from gpt_cli.model.gpt import GPT
from gpt_cli.model.sequence_classifier import SequenceClassifier
from gpt_cli.runtime.device import Runtime
from gpt_cli.runtime.oom import is_out_of_memory
from gpt_cli.training.evaluate import cross_entropy
from gpt_cli.training.grad_scaler import GradScaler


class TorchEngine:
    """The model by torch's autograd: eager, or compiled as one graph for training and one for evaluation.

    If compiling fails twice, in the forward or the backward pass, that is reported once, and the run continues eager.
    It is tried twice, since Ctrl-C reaches the compiler, too, which ends: the step that is then saved is compiled, as
    it is without the interruption.
    """

    def __init__(
        self,
        model: GPT,
        runtime: Runtime,
        grad_scaler: GradScaler,
        note: Notify,
        compile_mode: str | None = None,
        backend: str = "inductor",
    ) -> None:
        """`compile_mode`: a mode of torch.compile ("default", "reduce-overhead"), or None for eager."""
        self.runtime, self.grad_scaler, self.note = runtime, grad_scaler, note
        self.parameters = list(model.parameters())
        self.reuses_gradients = compile_mode == "reduce-overhead"  # a CUDA graph writes to the same memory again
        self.eager = loss_function(model)
        self.loss = self.eager
        self.eval_shape: torch.Size | None = None
        self.compile_has_failed = False
        if compile_mode is not None:
            note("torch compiles the first step, which takes up to a minute")
            warnings.filterwarnings("ignore", module=r"torch\._inductor")  # advice for those who write the compiler
            if torch.are_deterministic_algorithms_enabled():
                torch._inductor.config.deterministic = True  # autotuning would choose kernels by the clock
            mode = compile_mode if backend == "inductor" else None
            self.loss = torch.compile(self.eager, fullgraph=True, dynamic=False, mode=mode, backend=backend)

    def forward_backward(self, inputs: Tensor, targets: Tensor, loss_normalizer: int | Tensor, seed: int) -> Tensor:
        """See `Engine`."""
        while True:
            try:
                return self._forward_backward(inputs, targets, loss_normalizer, seed)
            except Exception as error:  # what compilers raise has no common base class
                self._compile_again_or_fall_back(error)

    def _forward_backward(self, inputs: Tensor, targets: Tensor, loss_normalizer: int | Tensor, seed: int) -> Tensor:
        torch.manual_seed(seed)
        if self.reuses_gradients:
            torch.compiler.cudagraph_mark_step_begin()
        with self.runtime.autocast():
            mean = isinstance(loss_normalizer, int)
            loss = (self.loss(inputs, targets) if mean else self.loss(inputs, targets, "sum")) / loss_normalizer
        scaled = self.grad_scaler.scale_loss(loss)
        if not self.reuses_gradients:
            scaled.backward()
            return loss.detach()
        # `backward` would copy gradients, and accumulate into memory that a replay has overwritten (pytorch #169545).
        trained = [p for p in self.parameters if p.requires_grad]
        for parameter, gradient in zip(trained, torch.autograd.grad(scaled, trained), strict=True):
            parameter.grad = gradient
        return loss.detach()

    def summed_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """See `Engine`. The first shape is compiled; others, such as a text's last windows, are computed eagerly."""
        self.eval_shape = self.eval_shape or inputs.shape
        with self.runtime.autocast():
            while inputs.shape == self.eval_shape:
                try:
                    return self.loss(inputs, targets, "sum").clone()  # a replay would overwrite it
                except Exception as error:
                    self._compile_again_or_fall_back(error)
            return self.eager(inputs, targets, "sum")

    def _compile_again_or_fall_back(self, error: Exception) -> None:
        """Have the step be tried again, at the second failure eagerly, as from then on.

        Re-raises `error` if it is eager already or memory was too small.
        """
        if self.loss is self.eager or is_out_of_memory(error):
            raise error
        if not self.compile_has_failed:
            from torch._inductor.utils import clear_caches  # noqa: PLC0415 - loads the compiler

            self.compile_has_failed = True
            torch.compiler.reset()
            clear_caches()  # they keep the failure
            return
        self.loss, self.reuses_gradients = self.eager, False
        self.note(f"torch.compile does not work here ({first_line(error)}); continuing without it")


def loss_function(model: GPT) -> Callable[..., Tensor]:
    """The function (inputs, targets, reduction) -> loss of `model` in nats."""
    return partial(class_loss, model) if isinstance(model, SequenceClassifier) else partial(token_loss, model)


def token_loss(model: GPT, inputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """(B, T), (B, T) -> -log p(target) in nats: the mean or the sum over targets that are not IGNORED."""
    if needs_chunking(model, inputs.numel()):
        return chunked_loss(model, inputs, targets, reduction)
    return cross_entropy(model(inputs), targets, reduction)


def class_loss(model: SequenceClassifier, inputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """(B, T), (B,) -> -log p(class) in nats, times the weight of the class in training: the mean or the sum."""
    losses = F.cross_entropy(model(inputs).float(), targets, reduction="none")
    if model.training and model.class_weights is not None:
        losses = losses * model.class_weights[targets]
    return losses.mean() if reduction == "mean" else losses.sum()
