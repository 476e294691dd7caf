"""How torch computes a step: with which attention kernel; as written, compiled or replayed; apart or as a whole."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpt_cli.errors import Note
from gpt_cli.model.attention_kernel import KERNELS, TORCH, preferring
from gpt_cli.runtime.compilation import compiled

Loss = Callable[[Tensor, Tensor], Tensor]
"""(B, T) inputs, (B, T) targets -> nats per token."""

UpdateBy = Callable[[float, float], Tensor]
"""The multiplier of the learning rates, the weight of the average -> the (P,) norms of the gradients it used up."""

Step = Callable[..., tuple[Tensor, Tensor]]
"""A training step, such as `loop.train_step`."""

ASKED, EAGER, COMPILED, GRAPHS, WHOLE = "asked", "eager", "compiled", "graphs", "whole"
LAUNCHES = (ASKED, EAGER, COMPILED, GRAPHS, WHOLE)
"""As the config says, as written, compiled, and compiled and replayed: loss and gradients as CUDA graphs of their own,
or the whole step as one."""


class Way:
    """How a run computes its steps. It begins as the config asks; `use` changes it to what was measured.

    Whatever a measured way raises later, `give_up` takes the plain one back: the run goes on.
    """

    def __init__(self, loss: Loss, note: Note, *, use_compile: bool = False) -> None:
        self.plain = loss
        self.asked = compiled(loss, note) if use_compile else loss
        self.loss = self.asked
        self.note = note
        self.attention, self.launch = TORCH, ASKED
        self.update: UpdateBy | None = None  # compiled; None: as written
        self.whole: Callable[..., tuple[Tensor, Tensor]] | None = None  # (plain step, its arguments): see `taking`
        self.device: str | None = None  # where the choice was measured; None: nothing was
        self.saved: object = None  # what a checkpoint kept of a choice

    def use(self, attention: str, launch: str, device: str, loss: Loss | None = None) -> None:
        """Compute like this from now on, as measured on `device`; `loss` is what `launched` gave, if it did already."""
        self.attention, self.launch, self.device = attention, launch, device
        self.loss = loss or (self.asked if launch == ASKED else launched(self.plain, launch))
        self.update = self.whole = None

    def taking(self, plain: Step) -> Step:
        """The training step to take: `plain`, or what was recorded of it as a whole."""
        return plain if self.whole is None else partial(self.whole, plain)

    def attending(self) -> AbstractContextManager[object]:
        """Around a forward pass and its backward pass: the attention kernel."""
        return preferring(self.attention)

    def backward(self, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        """Add the gradient of `loss` to the `grad` of every parameter that wants one: all of them or, raising, none."""
        if self.launch in (ASKED, EAGER):
            loss.backward()
            return
        learning = [p for p in parameters if p.requires_grad]
        for parameter, gradient in zip(learning, gradients(loss, learning, self.launch), strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def give_up(self, error: BaseException) -> bool:
        """Compute as written from now on, telling why once; False where that is what was done already."""
        if self.launch in (ASKED, EAGER):
            return False
        self._tell(f"the {self.launch} step", error)
        self.launch, self.loss, self.whole = EAGER, self.plain, None
        return True

    def give_up_update(self, error: BaseException) -> None:
        """Update as written from now on, telling why."""
        self._tell("the compiled update", error)
        self.update = None

    def _tell(self, what: str, error: BaseException) -> None:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        self.note(f"{what} does not work any more ({reason}); going on without it")

    def kept(self) -> dict[str, Any]:
        """What a checkpoint says of a measured choice, so that a resumed run computes the same bits."""
        if self.device is None:
            return {}
        update = EAGER if self.update is None else COMPILED
        return {"way": {"attention": self.attention, "launch": self.launch, "update": update, "device": self.device}}

    def saved_update(self) -> object:
        """How the update of the checkpoint was launched; as written in those that do not say."""
        return self.saved.get("update", EAGER) if isinstance(self.saved, dict) else EAGER

    def restore(self, device: str) -> bool:
        """Take up what the checkpoint kept of attention and launch, if it was measured on a device of this name.

        Whether it was. The update and the whole step are made anew by `quickest.equip`.
        """
        if not isinstance(self.saved, dict) or self.saved.get("device") != device:
            return False
        attention, launch = self.saved.get("attention"), self.saved.get("launch")
        if attention not in (TORCH, *KERNELS) or launch not in LAUNCHES or self.saved_update() not in (EAGER, COMPILED):
            return False
        self.use(attention, launch, device)
        return True


def launched(loss: Loss, launch: str) -> Loss:
    """`loss` as it is, compiled, or compiled and replayed as CUDA graphs; unlike `compiled`, one that raises."""
    if launch == EAGER:
        return loss
    if launch in (COMPILED, WHOLE):
        return torch.compile(loss)
    replayed = torch.compile(loss, mode="reduce-overhead")

    def call(inputs: Tensor, targets: Tensor) -> Tensor:
        # What the graph gave before may be overwritten now: `gradients` has copied it.
        torch.compiler.cudagraph_mark_step_begin()
        return replayed(inputs, targets)

    return call


def gradients(loss: Tensor, parameters: Sequence[Tensor], launch: str) -> list[Tensor]:
    """The gradient of `loss` for each of `parameters`, in memory of its own.

    What CUDA graphs compute lies where the next replay writes. `Tensor.backward` would keep it there as the `grad` of
    a parameter, and a second micro-batch would silently overwrite the first (pytorch/pytorch#169545).
    """
    found = torch.autograd.grad(loss, parameters)
    return [g.clone() for g in found] if launch == GRAPHS else list(found)
