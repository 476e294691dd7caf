"""From a run, or a checkpoint copied anywhere, to a model that evaluates and samples."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpt_cli.config import Config
from gpt_cli.errors import Notify, UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.model.sequence_classifier import make_model
from gpt_cli.model.sizing import build_on_meta
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.open_checkpoint import Task, open_checkpoint
from gpt_cli.run.tensors import check_tensors, tensor_specs
from gpt_cli.runtime.oom import oom_as_user_error
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


def load_model(path: Path, device: torch.device, note: Notify, task: Task = "language") -> LoadedRun:
    """The model in a checkpoint directory, or in the newest intact checkpoint of a run directory, ready to use.

    Raises RequestError when there is no checkpoint or it is of another task, UserError when there is none that can be
    used.
    """
    return build_model(open_checkpoint(path, note, task), device)


def build_model(checkpoint: Checkpoint, device: torch.device) -> LoadedRun:
    """The model of `checkpoint`, ready to use. Raises UserError if its weights do not fit its config."""
    model, saved = build_verified(checkpoint).to(device).eval(), checkpoint
    return LoadedRun(model, saved.tokenizer, saved.config, saved.step, saved.path, saved.weights_sha256, saved.state)


def build_verified(checkpoint: Checkpoint) -> GPT:
    """The model that `checkpoint` describes, with its weights.

    Raises UserError, before anything of that size is allocated, if its config asks for another model than its tensors
    make up: whoever wrote the one need not have written the other.
    """
    config, vocab_size = checkpoint.config, checkpoint.tokenizer.vocab_size
    last = config.model.n_layer - 1
    if not any(name.startswith(f"blocks.{last}.") for name in checkpoint.model_tensors):
        raise UserError(f"the checkpoint does not fit its config: it has no block {last:,}")
    outline = build_on_meta(
        config.model, vocab_size, lambda model, size: make_model(config.model_copy(update={"model": model}), size)
    )
    check_tensors(checkpoint.model_tensors, tensor_specs(outline.state_dict()))
    with oom_as_user_error("building the model", "the machine needs more memory than the model has weights"):
        model = make_model(config, vocab_size)
        load_weights(model, checkpoint)
    return model


def load_weights(model: GPT, checkpoint: Checkpoint) -> None:
    """Copy the weights of `checkpoint` into `model`. Raises UserError, before any is copied, if they do not fit."""
    check_tensors(checkpoint.model_tensors, tensor_specs(model.state_dict()))
    model.load_state_dict(checkpoint.model_tensors)
