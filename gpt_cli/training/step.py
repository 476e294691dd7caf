"""One training step: forward and backward pass of each micro-batch, then one update of the weights.

An engine (`training/engine.py`) computes the gradients. It is chosen once, before the first step: for GPUs
`torch_engine.TorchEngine`, for CPUs usually the C engine (`cpu/train`).

Shapes: P parameters.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpt_cli.config import Config, OptimConfig
from gpt_cli.runtime.device import Runtime
from gpt_cli.runtime.oom import oom_as_user_error
from gpt_cli.training.accumulate import accumulate_gradients
from gpt_cli.training.batches import MicroBatches

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
    is_text = config.data.format == "text"
    loss = accumulate_gradients(state, micro_batches, config.seed, step, runtime, has_ignored_targets=not is_text)
    # The activations are freed by now: smaller micro-batches would not help, and a retry would update twice.
    with oom_as_user_error("updating the weights", "train a smaller model in another run_dir; nothing saved is lost"):
        grad_norms = optimizer_step(state, config.optim, step, lr_multiplier)
    state.optimizer.zero_grad()
    return loss, grad_norms


def optimizer_step(state: "TrainingState", optim: OptimConfig, step: int, lr_multiplier: float) -> Tensor:
    """Make update `step` (from 0) at `lr_multiplier` times the peak learning rates; gradients are overwritten.

    Returns the (P,) norm of each parameter's gradient before clipping, on the device.
    """
    parameters = state.shard.updated(state.parameters)
    state.grad_scaler.unscale_(parameters)
    grad_norms = state.shard.gradient_norms(parameters)
    grad_norm = torch.linalg.vector_norm(grad_norms)
    max_norm = math.inf if optim.grad_clip is None else optim.grad_clip
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, grad_norm)
    found_inf = state.grad_scaler.update(grad_norm)  # None but under fp16
    # On a CPU the check is free, so weights stay finite there. On a GPU it would wait for the device: there the logger
    # raises, one step later.
    if found_inf is not None or grad_norm.device.type != "cpu" or bool(torch.isfinite(grad_norm)):
        state.optimizer.step(lr_multiplier, found_inf)
        state.shard.broadcast_weights()
        state.ema.update(step)
    return grad_norms
