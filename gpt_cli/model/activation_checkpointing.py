"""Activation checkpointing: the backward pass computes activations again, which saves memory and costs time."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpt_cli.model.gpt import GPT


def apply_activation_checkpointing(model: GPT) -> GPT:
    """Checkpoint every block, in place: only its input is saved, and the backward pass computes the rest again.

    Chen et al. (2016), "Training deep nets with sublinear memory cost", with a block as the unit. The same kernels
    run on the same numbers, dropout noise included, so losses and gradients are the same bits; a step takes about a
    third longer. Names and shapes of the parameters stay as they are.
    """
    has_dropout = model.config.dropout > 0 or model.config.attention_dropout > 0
    for block in model.blocks:
        block.forward = partial(_recomputed, block.forward, has_dropout)
    return model


def _recomputed(forward: Any, has_dropout: bool, x: Tensor, *args: Any) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(x, *args)
    # The state of the generator is saved, too, but only where there is dropout.
    return checkpoint(forward, x, *args, use_reentrant=False, preserve_rng_state=has_dropout)
