"""torch.compile, where it wins, and never as a reason to fail."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from gpt_cli.errors import Note

_STEPS_TO_WIN_BACK = 500  # a cold compile costs tens of seconds


def wins_by_compiling(asked: Literal["auto"] | bool, device: torch.device, steps: int) -> bool:
    """Whether to compile: as asked; by itself on a GPU, for runs long enough to win back what compiling costs.

    On a CPU the compiled step was no faster than the eager one (50 ms both, after 28 s of compiling), so auto
    leaves it.
    """
    return asked if asked != "auto" else device.type == "cuda" and steps >= _STEPS_TO_WIN_BACK


def compiler_errors() -> tuple[type[Exception], ...]:
    """What torch.compile raises where it does not work. It is imported for it: only a run that compiles pays that."""
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415
    from torch._inductor.exc import InductorError  # noqa: PLC0415

    return TorchDynamoException, InductorError


def compiled(function: Callable[..., Tensor], note: Note) -> Callable[..., Tensor]:
    """`function`, compiled at its first call; where that fails, `note` is told once and it runs as it is."""
    fast, errors = torch.compile(function), compiler_errors()
    broken = False

    def call(*arguments: Tensor) -> Tensor:
        nonlocal broken
        if not broken:
            try:
                return fast(*arguments)
            except errors as error:
                broken = True
                note(f"torch.compile does not work here ({str(error).strip().splitlines()[0]}); going on without it")
        return function(*arguments)

    return call
