"""One training step: forward and backward pass of each micro-batch, then one update of the weights.

`train_step` is the same whatever computes the gradients: an engine (`training/engine.py`), chosen once, before the
first step. `TorchEngine` is that of GPUs, eager or by torch.compile; that of CPUs is written in C (`cpu/train`).

Shapes: B sequences per micro-batch, T tokens each, P parameters.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpt_cli.config import Config, OptimConfig
from gpt_cli.errors import Notify
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.device import Runtime
from gpt_cli.runtime.oom import is_out_of_memory, oom_as_user_error
from gpt_cli.training.accumulate import accumulate_gradients
from gpt_cli.training.batches import MicroBatches
from gpt_cli.training.grad_scaler import GradScaler
from gpt_cli.training.objective import loss_function

if TYPE_CHECKING:
    from gpt_cli.training.state import TrainingState


def train_step(
    state: "TrainingState",
    micro_batches: MicroBatches,
    config: Config,
    step: int,
    lr_multiplier: float,
    runtime: Runtime,
) -> tuple[Tensor, Tensor]:
    """One update over `micro_batches`.

    Returns the mean loss, a scalar, and the (P,) norm of each parameter's gradient, both on the device.
    """
    loss = accumulate_gradients(state, micro_batches, config.seed, step, runtime, ignores=config.data.format != "text")
    # The activations are gone by now: smaller micro-batches would not help, and a second try would update twice.
    with oom_as_user_error("updating the weights", "train a smaller model in another run_dir; nothing saved is lost"):
        grad_norms = optimizer_step(state, config.optim, step, lr_multiplier)
    state.optimizer.zero_grad()
    return loss, grad_norms


def optimizer_step(state: "TrainingState", optim: OptimConfig, step: int, lr_multiplier: float) -> Tensor:
    """Make update `step` (from 0) at `lr_multiplier` times the peak learning rates; the gradients are used up.

    Returns the (P,) norm of each parameter's gradient before clipping, on the device.
    """
    parameters = state.shard.updated(state.parameters)
    state.grad_scaler.unscale_(parameters)
    grad_norms = state.shard.gradient_norms(parameters)
    grad_norm = torch.linalg.vector_norm(grad_norms)
    max_norm = math.inf if optim.grad_clip is None else optim.grad_clip
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, grad_norm)
    found_inf = state.grad_scaler.update(grad_norm)  # None but under fp16
    # A CPU can be asked at no cost, so weights stay finite there; a GPU's log stops the run one step later.
    if found_inf is not None or grad_norm.device.type != "cpu" or bool(torch.isfinite(grad_norm)):
        state.optimizer.step(lr_multiplier, found_inf)
        state.shard.spread_weights()
        state.ema.update(step)
    return grad_norms


class TorchEngine:
    """The model by torch's autograd: eager, or compiled as one graph for training and one for evaluation.

    A compile that fails, in the forward or the backward pass, is reported once, and the run goes on eager.
    """

    def __init__(
        self,
        model: GPT,
        runtime: Runtime,
        grad_scaler: GradScaler,
        note: Notify,
        compile_mode: str | None = None,
        backend: str = "inductor",
        packed: bool = False,
    ) -> None:
        """`compile_mode`: a mode of torch.compile ("default", "reduce-overhead"), or None for eager. `packed`: whether
        a row may be several sequences (`model/packed_rows.py`)."""
        self.runtime, self.grad_scaler, self.note = runtime, grad_scaler, note
        self.parameters = list(model.parameters())
        self.reuses_gradients = compile_mode == "reduce-overhead"  # a CUDA graph writes to the same memory again
        self.eager = loss_function(model, packed=packed)
        self.loss = self.eager
        self.eval_shape: torch.Size | None = None
        if compile_mode is not None:
            note("torch compiles the first step, which takes up to a minute")
            if torch.are_deterministic_algorithms_enabled():
                torch._inductor.config.deterministic = True  # autotuning would choose kernels by the clock
            mode = compile_mode if backend == "inductor" else None
            self.loss = torch.compile(self.eager, fullgraph=True, dynamic=False, mode=mode, backend=backend)

    def forward_backward(self, inputs: Tensor, targets: Tensor, parts: int | Tensor, seed: int) -> Tensor:
        """See `Engine`."""
        try:
            return self._forward_backward(inputs, targets, parts, seed)
        except Exception as error:  # what compilers raise has no base in common
            self._fall_back(error)
        return self._forward_backward(inputs, targets, parts, seed)

    def _forward_backward(self, inputs: Tensor, targets: Tensor, parts: int | Tensor, seed: int) -> Tensor:
        torch.manual_seed(seed)
        if self.reuses_gradients:
            torch.compiler.cudagraph_mark_step_begin()
        with self.runtime.autocast():
            mean = isinstance(parts, int)
            loss = (self.loss(inputs, targets) if mean else self.loss(inputs, targets, "sum")) / parts
        scaled = self.grad_scaler.scale_loss(loss)
        if not self.reuses_gradients:
            scaled.backward()
            return loss.detach()
        # `backward` would copy them, and add the next to memory that a replay has overwritten (pytorch #169545).
        trained = [p for p in self.parameters if p.requires_grad]
        for parameter, gradient in zip(trained, torch.autograd.grad(scaled, trained), strict=True):
            parameter.grad = gradient
        return loss.detach()

    def summed_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """See `Engine`. The first shape is compiled; others, such as a text's last windows, are computed eagerly."""
        self.eval_shape = self.eval_shape or inputs.shape
        with self.runtime.autocast():
            if inputs.shape == self.eval_shape:
                try:
                    return self.loss(inputs, targets, "sum").clone()  # a replay would write over it
                except Exception as error:
                    self._fall_back(error)
            return self.eager(inputs, targets, "sum")

    def _fall_back(self, error: Exception) -> None:
        """Compute eagerly from now on; raises `error` where that is done already or memory was too small."""
        if self.loss is self.eager or is_out_of_memory(error):
            raise error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        self.loss, self.reuses_gradients = self.eager, False
        self.note(f"torch.compile does not work here ({reason}); continuing without it")
