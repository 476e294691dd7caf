"""Optimizer state sharding (ZeRO-1): whole matrices for Muon, slices of parameters for AdamW.

Rajbhandari et al. (2020), "ZeRO: memory optimizations toward training trillion parameter models", stage 1. A process
receives the summed gradients of its own parts only, updates these, and sends them to all others: the same traffic as an
all-reduce of the gradient.

Shapes: P parameters; E elements of a part, which has as many dimensions as its parameter: weight decay depends on them.
"""

from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpt_cli.distributed import norms
from gpt_cli.distributed.norms import n_pieces, norms_of, piece_norms
from gpt_cli.distributed.world import ALONE, World

Zeros = Callable[[str, Tensor], Tensor]
"""(name, parameter) -> zeros like it, for the state of its optimizer."""


@dataclass(frozen=True)
class OwnedSlice:
    """The elements [first, end) of a parameter, which process `owner` updates.

    They begin at a piece (`norms.py`): a vectorised kernel may round the last elements of a tensor differently.
    """

    owner: int
    first: int
    end: int

    @property
    def numel(self) -> int:
        """The number of elements."""
        return self.end - self.first

    def of(self, tensor: Tensor) -> Tensor:
        """The part of `tensor`, in its memory."""
        if self.numel == tensor.numel():
            return tensor
        return tensor.detach().view(-1)[self.first : self.end].view(self.shape_in(tensor.shape))

    def shape_in(self, whole: Sequence[int]) -> Sequence[int]:
        """The shape of the part of a tensor of shape `whole`: (E, 1) of a matrix, (E,) of a vector, or all of it."""
        return whole if self.numel == prod(whole) else (self.numel, *[1] * (len(whole) - 1))


Parts = Sequence[OwnedSlice]
"""All parts of one parameter, in order; a process owns at most one of them."""


class Shard:
    """The parameters by name, and which process updates which part; without `parts` every process updates all.

    `parts`: the slices of every parameter, and their owners. `owned`: the slices that this process owns, at most one of
    each parameter. `stored`: the parameters in its memory. `optimized`: the tensor that its optimizer updates for each:
    the owned slice, or the whole where it owns none. `local`: the part of a tensor that is in this process.
    """

    is_full = False
    """True if weights are sharded, too (`fsdp.py`)."""

    def __init__(
        self, parameters: Mapping[str, Tensor], world: World = ALONE, parts: Mapping[str, Parts] | None = None
    ) -> None:
        self.world = world
        self.stored = dict(parameters)
        self.optimized = dict(parameters)
        self.parts = {name: parts[name] for name in parameters} if parts is not None and world.size > 1 else None
        self.owned = self._of(world.rank)
        self.optimized |= {name: part.of(parameters[name]) for name, part in self.owned.items()}
        self.parameters = list(self.optimized.values())

    def zeros(self, name: str, parameter: Tensor) -> Tensor:
        """Zeros like parameter `name`; on the device meta, without memory, if another process stores them."""
        is_stored = self.parts is None or name in self.owned
        return torch.zeros_like(parameter, device=None if is_stored else "meta")

    def set_gradients(self, gradients: Iterable[Tensor | None]) -> None:
        """Set the gradients of the `optimized` tensors; None where there is none."""
        for (name, tensor), gradient in zip(self.optimized.items(), gradients, strict=True):
            if tensor is not self.stored[name]:
                tensor.data = self.owned[name].of(self.stored[name])  # an EMA swap may have changed its storage
            tensor.grad = gradient

    def updated(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """The tensors with a gradient that this process updates, of the `trained` parameters."""
        return [tensor for tensor in (trained if self.parts is None else self.parameters) if tensor.grad is not None]

    def gradient_norms(self, parameters: Iterable[Tensor]) -> Tensor:
        """The (P,) norm of the gradient of each of `parameters` that has one in any process."""
        if self.parts is None:
            return torch.stack(norms_of([parameter.grad for parameter in parameters if parameter.grad is not None]))
        ends = list(accumulate(n_pieces(parameter.numel()) for parameter in self.stored.values()))
        firsts = dict(zip(self.stored, (0, *ends), strict=False))
        all_norms = torch.zeros(ends[-1], device=self.parameters[0].device)
        whole = {
            n: g
            for n in self.owned
            if (g := self.optimized[n].grad) is not None and n_pieces(self.stored[n].numel()) == 1
        }
        if whole:
            all_norms[[firsts[name] for name in whole]] = torch.stack(norms_of(list(whole.values())))
        for name, part in self.owned.items():
            if name not in whole and (gradient := self.optimized[name].grad) is not None:
                part_norms = piece_norms(gradient)
                first = firsts[name] + part.first // norms.PIECE
                all_norms[first : first + len(part_norms)] = part_norms
        norms_by_parameter = self.world.all_reduce_disjoint(all_norms).split(
            [end - first for first, end in zip(firsts.values(), ends, strict=True)]
        )
        return torch.stack([n[0] if len(n) == 1 else torch.linalg.vector_norm(n) for n in norms_by_parameter])

    @torch.no_grad()
    def broadcast_weights(self) -> None:
        """Send the parts that each process has updated to all others."""
        if self.parts is None:
            return
        ranks = range(self.world.size)
        by_rank = [[part.of(self.stored[name]) for name, part in self._of(rank).items()] for rank in ranks]
        flats = [
            torch.cat([p.reshape(-1) for p in parts])
            if rank == self.world.rank and parts  # there may be more processes than parameters
            else self.parameters[0].new_empty(sum(p.numel() for p in parts))
            for rank, parts in enumerate(by_rank)
        ]
        with self.world.exchanging():
            works = [dist.broadcast(flat, src=rank, async_op=True) for rank, flat in enumerate(flats) if len(flat)]
            for work in works:
                assert work is not None
                work.wait()
        for flat, parts in zip(flats, by_rank, strict=True):
            for part, piece in zip(parts, flat.split([p.numel() for p in parts]), strict=True):
                part.copy_(piece.view_as(part))

    def collect(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather the optimizer state, tensors KIND/NAME, in process 0, on the host.

        One tensor is sent at a time, by way of the host's memory.
        """
        return dict(state) if self.parts is None else {key: self._gather(key, tensor) for key, tensor in state.items()}

    def _gather(self, key: str, local: Tensor) -> Tensor:
        assert self.parts is not None
        name = key.partition("/")[2]
        parts = self.parts.get(name, ())
        if len(parts) < 2:
            return self.world.send_to_main(local, parts[0].owner if parts else 0)
        pieces, shape = [], self.stored[name].shape
        for part in parts:
            is_own = part.owner == self.world.rank
            pieces.append(
                self.world.send_to_main(
                    local if is_own else local.new_empty(part.shape_in(shape), device="meta"), part.owner
                )
            )
        return torch.cat([piece.cpu() for piece in pieces]).view(shape) if self.world.is_main else local

    def local_state(self, model: nn.Module) -> dict[str, Tensor]:
        """The part of the state of `model` that is in this process."""
        return dict(model.state_dict())

    def collect_rows(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather tensors that are sharded like the parameters in process 0."""
        return dict(state)

    def gather(self, key: str, local: Tensor) -> Tensor:
        """The whole tensor `key`, of which `local` is in this process, in all processes (`is_full` alone).

        All processes call this together.
        """
        raise NotImplementedError

    def shape_of(self, key: str, local: Tensor) -> torch.Size:
        """The shape of the whole tensor `key`, of which `local` is in this process."""
        name = key.partition("/")[2]
        return self.stored[name].shape if name in self.owned else local.shape

    def local_part(self, key: str, local: Tensor, whole: Tensor) -> Tensor:
        """The part of the `whole` tensor `key` that belongs in `local`."""
        return whole if local.shape == whole.shape else self.owned[key.partition("/")[2]].of(whole)

    def _of(self, rank: int) -> dict[str, OwnedSlice]:
        """The parts that process `rank` updates."""
        parts = (self.parts or {}).items()
        return {name: part for name, of_name in parts for part in of_name if part.owner == rank}


def slices(sizes: Mapping[str, int], loads: Sequence[float]) -> dict[str, list[OwnedSlice]]:
    """Cut parameters of these `sizes` into a consecutive range of elements for each process, so as to balance `loads`.

    The loads become equal to within a piece.
    """
    remaining = sorted(loads)
    level = 0.0
    while remaining:
        level = (sum(sizes.values()) + sum(remaining)) / len(remaining)
        if remaining[-1] <= level:
            break
        remaining.pop()  # it has more than the average already
    bounds = list(accumulate(max(0.0, level - load) for load in loads))[:-1]  # in all parameters, one after the other
    parts, offset = {}, 0
    for name, size in sizes.items():
        inner = [min(size, max(0, round((bound - offset) / norms.PIECE) * norms.PIECE)) for bound in bounds]
        cuts = enumerate(pairwise((0, *inner, size)))
        parts[name] = [OwnedSlice(rank, first, end) for rank, (first, end) in cuts if first < end]
        offset += size
    return parts


def share_out(costs: Mapping[str, int], loads: MutableSequence[int]) -> dict[str, int]:
    """{name: owner}: the most expensive first, each to the process with the lowest load; updates `loads`."""
    owners = {}
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        owner = min(range(len(loads)), key=loads.__getitem__)
        loads[owner] += costs[name]
        owners[name] = owner
    return owners


def zeros_of(_name: str, parameter: Tensor) -> Tensor:
    """Zeros like `parameter`."""
    return torch.zeros_like(parameter)
