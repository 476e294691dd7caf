"""From a run, or a checkpoint copied anywhere, to a model that evaluates and samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt_cli.config import Config
from gpt_cli.errors import Note
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import Checkpoint, open_checkpoint
from gpt_cli.run.tensors import check_tensors
from gpt_cli.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedRun:
    """A trained model with all that is needed to use it."""

    model: GPT
    tokenizer: Tokenizer
    config: Config
    step: int
    path: Path  # of the checkpoint
    weights_sha256: str
    state: dict[str, Any]  # what training says of the checkpoint


def load_model(path: Path, device: torch.device, note: Note) -> LoadedRun:
    """The model in a checkpoint directory, or in the newest intact checkpoint of a run directory, ready to use.

    Raises RequestError when there is no checkpoint, UserError when there is none that can be used.
    """
    return build_model(open_checkpoint(path, note), device)


def build_model(checkpoint: Checkpoint, device: torch.device) -> LoadedRun:
    """The model of `checkpoint`, ready to use. Raises UserError if its weights do not fit its config."""
    model = GPT(checkpoint.config.model, checkpoint.tokenizer.vocab_size)
    load_weights(model, checkpoint)
    return LoadedRun(
        model=model.to(device).eval(),
        tokenizer=checkpoint.tokenizer,
        config=checkpoint.config,
        step=checkpoint.step,
        path=checkpoint.path,
        weights_sha256=checkpoint.weights_sha256,
        state=checkpoint.state,
    )


def load_weights(model: GPT, checkpoint: Checkpoint) -> None:
    """Copy the weights of `checkpoint` into `model`. Raises UserError, before any is copied, if they do not fit."""
    check_tensors(checkpoint.model_tensors, described(model.state_dict()))
    model.load_state_dict(checkpoint.model_tensors)


def described(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """The shape and type of each tensor, by name."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
