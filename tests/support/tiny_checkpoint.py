"""Checkpoints of a few numbers that follow from their step."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from gpt_cli.config import Config
from gpt_cli.run import checkpoint
from gpt_cli.tokenizer import CharTokenizer

CONFIG = Config(run_dir="runs/test", seed=7)
TOKENIZER = CharTokenizer("ab\n")


def weights(step: int) -> dict[str, Tensor]:
    return {
        "embedding": torch.full((3, 2), float(step)),
        "half": torch.tensor([0.1, -2.0, math.pi]).bfloat16(),
        "scalar": torch.tensor(step / 3),
    }


def moments(step: int) -> dict[str, Tensor]:
    return {"exp_avg/embedding": torch.full((3, 2), step / 7), "step/embedding": torch.tensor(float(step))}


def save(run: Path, step: int, val_loss: float | None = None) -> Path:
    state = {"val_loss": val_loss, "nested": {"scale": 0.1}}
    return checkpoint.save(run, step, weights(step), moments(step), state, CONFIG, TOKENIZER)


def no_note(text: str) -> None:
    raise AssertionError(text)


def assert_same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype
        assert torch.equal(tensor, b[name])


def newest(run: Path, note: Callable[[str], None] = no_note) -> int:
    """The step of the newest intact checkpoint, whose contents are checked."""
    actual = checkpoint.load_newest(run, note)
    assert actual is not None
    assert_same(actual.model_tensors, weights(actual.step))
    assert_same(actual.optimizer_tensors(), moments(actual.step))
    return actual.step


def steps(run: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoint.list_checkpoints(run)]
