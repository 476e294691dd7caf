"""An exponential moving average of the weights (Polyak averaging), used for evaluation, samples and checkpoints."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class EMA:
    """average <- decay * average + (1 - decay) * weights after each step; with decay None, the weights themselves.

    The average starts as the plain mean of the first steps, so that the random initial weights do not linger.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float | None, *, in_place: bool = False) -> None:
        """`in_place`: whether parameters must keep their storage."""
        self.parameters = dict(parameters) if decay is not None else {}
        self.decay, self.in_place = decay, in_place
        self.average = {name: p.detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Include the weights as they are after update `step` (from 0)."""
        if self.decay is not None:
            weight = max(1.0 - self.decay, 1.0 / (step + 1))
            torch._foreach_lerp_(list(self.average.values()), list(self.parameters.values()), weight)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Swap the average into the model; `state_tensors` holds the raw weights meanwhile."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def state_tensors(self) -> dict[str, Tensor]:
        """As `raw/NAME`: the raw weights while the average is swapped in, else the average."""
        return {f"raw/{name}": tensor for name, tensor in self.average.items()}

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the average and the weights of the model."""
        for name, parameter in self.parameters.items():
            if self.in_place:
                average = self.average[name].clone()
                self.average[name].copy_(parameter)
                parameter.copy_(average)
            else:
                parameter.data, self.average[name] = self.average[name], parameter.data
