"""The share of the optimizer that each process keeps: whole parameters, each updated by one process (ZeRO-1).

Rajbhandari et al. (2020), "ZeRO: memory optimizations toward training trillion parameter models", stage 1. A process
receives the sums of the gradients of its own parameters only, updates these, and sends them to all others: as many
bytes as it takes to give everybody the whole gradient.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpt_cli.distributed.world import ALONE, World

Zeros = Callable[[str, Tensor], Tensor]
"""(name, parameter) -> zeros like it, for the state of its optimizer."""


class Shard:
    """Parameters, in the order of their names, and which process updates each; without `owners` every process all."""

    is_full = False
    """True if the processes share the weights, too (`fsdp.py`)."""

    def __init__(
        self, parameters: Mapping[str, Tensor], world: World = ALONE, owners: Mapping[str, int] | None = None
    ) -> None:
        self.world = world
        self.named = self.kept = dict(parameters)  # what the optimizer updates, and what this process keeps
        self.parameters = list(parameters.values())
        self.by_name = owners or {}
        self.owners = [owners[name] for name in parameters] if owners is not None and world.size > 1 else None

    def zeros(self, name: str, parameter: Tensor) -> Tensor:
        """Zeros like parameter `name`: on the device meta, where they take no memory, if another process keeps them."""
        kept = self.owners is None or self.by_name[name] == self.world.rank
        return torch.zeros_like(parameter, device=None if kept else "meta")

    def each_leaf(self, own: Iterable[int], leaves: int) -> Iterator[int]:
        """Each of this process's `own` leaves, while gradients are summed over all (`is_full` alone)."""
        raise NotImplementedError

    def updated(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """The tensors with a gradient that this process updates, of the `trained` parameters."""
        return [parameter for parameter in trained if parameter.grad is not None]

    def gradient_norms(self, parameters: Iterable[Tensor]) -> Tensor:
        """The (P,) norm of the gradient of each of `parameters` that has one in any process."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norms = torch._foreach_norm(gradients) if gradients else ()
        if self.owners is None:
            return torch.stack(norms)
        of_all = torch.zeros(len(self.owners), device=self.parameters[0].device)
        if norms:
            of_all[self._of(self.world.rank)] = torch.stack(norms)
        return self.world.fill(of_all)

    @torch.no_grad()
    def spread_weights(self) -> None:
        """Give every process the parameters that another one has updated."""
        if self.owners is None:
            return
        owned = [[self.parameters[i] for i in self._of(rank)] for rank in range(self.world.size)]
        flats = [
            torch.cat([p.reshape(-1) for p in parameters])
            if rank == self.world.rank and parameters  # there may be more processes than parameters
            else self.parameters[0].new_empty(sum(p.numel() for p in parameters))
            for rank, parameters in enumerate(owned)
        ]
        with self.world.exchanging():
            works = [dist.broadcast(flat, src=rank, async_op=True) for rank, flat in enumerate(flats) if len(flat)]
            for work in works:
                assert work is not None
                work.wait()
        for flat, parameters in zip(flats, owned, strict=True):
            for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                parameter.copy_(piece.view_as(parameter))

    def collect(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`state`, of whose tensors KIND/NAME a process has those of its own parameters; in process 0 all, on the host.

        One tensor is sent at a time, from and to the memory of the host.
        """
        if self.owners is None:
            return dict(state)
        return {key: self.world.bring(t, self.by_name.get(key.partition("/")[2], 0)) for key, t in state.items()}

    def held(self, model: nn.Module) -> dict[str, Tensor]:
        """The state of `model` as far as it is in this process."""
        return dict(model.state_dict())

    def collect_rows(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`tensors` that are `held`, or shared out alike, as a whole in process 0."""
        return dict(tensors)

    def shape_of(self, key: str, held: Tensor) -> torch.Size:
        """The shape of the whole of what is `held` here, whose name ends `key`."""
        return held.shape

    def own_part(self, held: Tensor, whole: Tensor) -> Tensor:
        """The part of `whole` that is to be `held` here."""
        return whole

    def _of(self, rank: int) -> list[int]:
        assert self.owners is not None
        return [i for i, owner in enumerate(self.owners) if owner == rank]


def share_out(costs: Mapping[str, int], loads: MutableSequence[int]) -> dict[str, int]:
    """The process that takes each name: the dearest first, by the least `loads` so far, which grow by what is taken."""
    owners = {}
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        owner = min(range(len(loads)), key=loads.__getitem__)
        loads[owner] += costs[name]
        owners[name] = owner
    return owners


def zeros_of(_name: str, parameter: Tensor) -> Tensor:
    """Zeros like `parameter`, where its state is kept whatever its name."""
    return torch.zeros_like(parameter)
