"""The gradient of the loss: by torch's autograd, or by compiled code where it knows the model."""

import torch
from torch import Tensor

from gpt_cli.runtime.device import Runtime
from gpt_cli.runtime.memory import is_out_of_memory
from gpt_cli.training.state import TrainingState


def add_gradients(state: TrainingState, inputs: Tensor, targets: Tensor, parts: int, runtime: Runtime) -> Tensor:
    """(B, T), (B, T), one of `parts` micro-batches -> its share of the mean loss, a scalar on the device.

    The gradient of that share is added to the `grad` of every parameter (times the loss scale, under fp16).
    """
    if state.native is not None:
        share = 1.0 / (inputs.numel() * parts)
        return torch.tensor(state.native.add_gradients(inputs, targets, share, torch.initial_seed()) * share)
    try:
        return _by_torch(state, inputs, targets, parts, runtime)
    except RuntimeError as error:
        if is_out_of_memory(error) or not state.way.give_up(error):
            raise
    return _by_torch(state, inputs, targets, parts, runtime)


def _by_torch(state: TrainingState, inputs: Tensor, targets: Tensor, parts: int, runtime: Runtime) -> Tensor:
    with state.way.attending():
        with runtime.autocast():
            loss = state.loss(inputs, targets) / parts
        state.way.backward(state.loss_scale.apply(loss), state.parameters)
    return loss.detach()
