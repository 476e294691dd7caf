"""Updates and steps made for a trial, on copies of the state: what they change, without changing it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gpt_cli.training.state import TrainingState


@contextmanager
def on_copies(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Within: each of `tensors` lies in memory that is a copy of its own. Gives them as they were, in their own.

    Afterwards they are there again. Nothing that is done to them within reaches that memory.
    """
    own = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.clone()
        yield own
    finally:
        for tensor, data in zip(tensors, own, strict=True):
            tensor.data = data


class Trials:
    """Different ways to change a state, each begun at the state as it is; used within `opened`.

    Each gives what it computed and what it changed, in units of what the first changed: a gradient's square is
    as small beside a weight as its error, and must be as right.
    """

    def __init__(self, state: TrainingState, own: Sequence[Tensor]) -> None:
        self._now, self._own = trial_tensors(state), list(own)
        self._floats = [i for i, tensor in enumerate(own) if tensor.is_floating_point()]
        factors = [t for name, t in state.optimizer.state_tensors().items() if name.startswith("lora/")]
        self._weights = {id(t) for t in (*state.parameters, *factors, *state.average.average.values())}
        self._units: list[float] = []

    @classmethod
    @contextmanager
    def opened(cls, state: TrainingState) -> Iterator["Trials"]:
        """Within: `state` is a copy of itself, on which trials can be made."""
        with on_copies(trial_tensors(state)) as own:
            try:
                yield cls(state, own)
            finally:
                state.optimizer.zero_grad()

    @torch.no_grad()
    def of(self, change: Callable[[], Sequence[Tensor]], *, exactly: bool) -> list[Tensor]:
        """What `change` computes, and what it changes; of weights, unless `exactly`, only how far they moved.

        Muon's update of a matrix whose gradient has small singular values, and Adam's first of a weight whose
        gradient is next to nothing, turn on last bits, in which two computations of that gradient may differ.
        """
        now, own = ([tensors[i] for i in self._floats] for tensors in (self._now, self._own))
        torch._foreach_copy_(now, own)
        for i in set(range(len(self._now))).difference(self._floats):
            self._now[i].copy_(self._own[i])
        with torch.enable_grad():
            computed = list(change())
        changed = list(torch._foreach_sub(now, own))
        if not exactly:
            weights = [i for i, tensor in enumerate(now) if id(tensor) in self._weights]
            for i, norm in zip(weights, torch._foreach_norm([changed[i] for i in weights]), strict=True):
                changed[i] = norm
        found = [*computed, *changed]
        if not self._units:
            self._units = [norm or 1.0 for norm in torch.stack(torch._foreach_norm(found)).tolist()]
        return list(torch._foreach_div(found, self._units))


def trial_tensors(state: TrainingState) -> list[Tensor]:
    """Whatever a step changes."""
    return [*state.changing(), state.loss_scale.scale, state.loss_scale.good_updates]
