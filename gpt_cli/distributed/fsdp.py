"""Weights, gradients and optimizer shared out over all processes (FSDP), with the sums of `reduce.py`.

`torch.distributed.fsdp.fully_shard` keeps some rows of each parameter in each process, gathers a block when it is
computed, and gives each process its rows of the gradient (Zhao et al., 2023, "PyTorch FSDP"). Its sum over processes is
replaced by one whose order does not depend on their number. Of a parameter that is updated as a whole (Muon's), and of
a gradient whose norm is taken, one process has all rows for as long as that takes. Vectors, which are small, are in
every process: kernels compute the few numbers that are left after the last full register with other roundings.

Shapes: R rows of a parameter, of which process r has chunk r of ceil(R / processes); S elements of a slice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from gpt_cli.distributed.norms import norms_of
from gpt_cli.distributed.reduce import TreeSum
from gpt_cli.distributed.shard import Shard
from gpt_cli.distributed.world import World


class FullShard(Shard):
    """The rows of each parameter that this process keeps, and what it updates.

    `optimized` is what the optimizer updates: these rows, in the model's own memory, and vectors; but of each name in
    `whole` all rows, in the process that owns it, and only from `updated` to `broadcast_weights`.
    """

    is_full = True

    def __init__(
        self,
        model: nn.Module,
        blocks: Iterable[nn.Module],
        world: World,
        device: torch.device,
        owners: Mapping[str, int],
        whole: Set[str],
    ) -> None:
        """Share out `model`, in place, by `blocks`; one at a time is on `device` as a whole.

        `model.features` may be called as `model` itself is.
        """
        self.progress = _LeafSums(world)
        self.vectors = {name: p for name, p in model.named_parameters() if p.dim() < 2}
        self.vector_sums = _TreeReduceScatter(self.progress)
        for vector in self.vectors.values():
            vector.data = vector.data.to(device)
        mesh = init_device_mesh(device.type, (world.size,))
        for module in (*blocks, model):
            sharded = fully_shard(module, mesh=mesh, ignored_params=set(self.vectors.values()))
            sharded.set_custom_all_gather(_AllGather(world))  # type: ignore[arg-type]
            sharded.set_custom_reduce_scatter(_TreeReduceScatter(self.progress))  # type: ignore[arg-type]
        register_fsdp_forward_method(model, "features")
        self.device = device
        self.sharded = {name: p for name, p in model.named_parameters() if name not in self.vectors}
        self.names = {n: p for n, p in model.named_parameters(remove_duplicate=False) if n not in self.vectors}
        self.rows = {name: _local(p) for name, p in self.sharded.items()}
        self.whole = [name for name in self.sharded if name in whole]
        stored = {name: self.rows.get(name, p) for name, p in model.named_parameters()}
        super().__init__({n: self._nothing(n) if n in whole else p for n, p in stored.items()}, world)
        self.stored, self.owners = stored, owners

    def zeros(self, name: str, parameter: Tensor) -> Tensor:
        """See `Shard`."""
        kept = name not in self.whole or self._owns(name)
        return torch.zeros(parameter.shape, device=self.device if kept else "meta")

    def each_leaf(self, own: Iterable[int], leaves: int) -> Iterator[int]:
        """See `Shard`. The gradients are there after the last."""
        self.progress.begin(leaves)
        for leaf in own:
            yield leaf
            self._add_vectors()
            if not self.progress.is_last:  # what is there is no gradient yet
                for parameter in self.sharded.values():
                    parameter.grad = None
            self.progress.first += self.world.size

    @torch.no_grad()
    def _add_vectors(self) -> None:
        """Add the gradients of vectors of the leaves that were computed; after the last leaf they are the sums."""
        gradients = [_gradient(vector).reshape(-1) for vector in self.vectors.values()]
        if not gradients:
            return
        sizes = [gradient.numel() for gradient in gradients]
        size = -(-sum(sizes) // self.world.size)
        gradients.append(gradients[0].new_zeros(size * self.world.size - sum(sizes)))
        own = gradients[0].new_empty(size)
        self.vector_sums(own, torch.cat(gradients), dist.group.WORLD, None)
        whole = [torch.empty_like(own) for _ in range(self.world.size if self.progress.is_last else 0)]
        if whole:
            with self.world.exchanging():
                dist.all_gather(whole, own)
        pieces = torch.cat(whole)[: sum(sizes)].split(sizes) if whole else [None] * len(sizes)
        for vector, piece in zip(self.vectors.values(), pieces, strict=True):
            vector.grad = None if piece is None else piece.view_as(vector)

    @torch.no_grad()
    def updated(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """See `Shard`: rows, and the whole of what this process owns and updates as a whole."""
        gradients = {name: _local(_gradient(parameter)) for name, parameter in self.sharded.items()}
        for name, parameter in self.sharded.items():
            parameter.grad = None
            if name not in self.whole:
                self.optimized[name].grad = gradients[name]
        weights = self._to_owners({name: self.rows[name] for name in self.whole})
        for name, gradient in self._to_owners({name: gradients[name] for name in self.whole}).items():
            self.optimized[name].set_(weights[name])  # type: ignore[call-overload]
            self.optimized[name].grad = gradient
        return [tensor for tensor in self.parameters if tensor.grad is not None]

    @torch.no_grad()
    def gradient_norms(self, parameters: Iterable[Tensor]) -> Tensor:
        """See `Shard`. The norm of a whole gradient: those of its rows would add up to other bits."""
        found = self._to_owners({name: _gradient(self.optimized[name]) for name in self.rows if name not in self.whole})
        found |= {n: _gradient(self.optimized[n]) for n in (*self.whole, *self.vectors) if self._owns(n)}
        norms = torch.zeros(len(self.parameters), device=self.device)
        if found:
            places = {name: place for place, name in enumerate(self.optimized)}
            norms[[places[name] for name in found]] = torch.stack(norms_of(list(found.values())))
        return self.world.all_reduce_disjoint(norms)

    @torch.no_grad()
    def broadcast_weights(self) -> None:
        """See `Shard`: their rows, of the parameters that one process updates as a whole."""
        sent = [
            [self._piece(self.optimized[name], rank) for name in self._of_whole(self.world.rank)]
            for rank in range(self.world.size)
        ]
        received = self._exchange(
            sent, [[self.rows[name].shape for name in self._of_whole(rank)] for rank in range(self.world.size)]
        )
        for rank, pieces in enumerate(received):
            for name, piece in zip(self._of_whole(rank), pieces, strict=True):
                self.rows[name].copy_(piece)
        for name in self.whole:
            self.optimized[name].grad = None
            self.optimized[name].set_(self._nothing(name))  # type: ignore[call-overload]

    def local_state(self, model: nn.Module) -> dict[str, Tensor]:
        """See `Shard`."""
        rows = {id(self.sharded[name]): tensor for name, tensor in self.rows.items()}
        return {
            key: rows[id(self.names[key])] if key in self.names else tensor
            for key, tensor in model.state_dict().items()
        }

    def shape_of(self, key: str, local: Tensor) -> torch.Size:
        """See `Shard`."""
        name = key.rpartition("/")[2]
        return self.names[name].shape if name in self.names else local.shape

    def local_part(self, key: str, local: Tensor, whole: Tensor) -> Tensor:
        """See `Shard`."""
        return whole if local.shape == whole.shape else self._piece(whole, self.world.rank)

    def collect(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Shard`."""
        found = {}
        for key, tensor in state.items():
            name = key.rpartition("/")[2]
            if name in self.whole:
                found[key] = self.world.send_to_main(tensor, self.owners[name])
            else:
                found[key] = self._gather_rows(key, tensor) if name in self.names else tensor
        return found

    def collect_rows(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Shard`."""
        found: dict[int, Tensor] = {}  # one for weights that have two names
        for key, tensor in tensors.items():
            if id(tensor) not in found:
                found[id(tensor)] = self._gather_rows(key, tensor) if key.rpartition("/")[2] in self.names else tensor
        return {key: found[id(tensor)] for key, tensor in tensors.items()}

    def _gather_rows(self, key: str, rows: Tensor) -> Tensor:
        """All rows in process 0, on the host; elsewhere those that are there."""
        shape, pieces = self.shape_of(key, rows), [rows.detach().cpu()]
        for rank in range(1, self.world.size):
            first, end = self._chunk(shape[0], rank)
            if first < end:
                own = rows if rank == self.world.rank else rows.new_empty((end - first, *shape[1:]), device="meta")
                pieces.append(self.world.send_to_main(own, rank))
        return torch.cat(pieces) if self.world.is_main else rows

    def _to_owners(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole of those tensors that this process owns, from the rows that each process has."""
        ranks = range(self.world.size)
        names = [[name for name in rows if self.owners[name] == rank] for rank in ranks]
        own = names[self.world.rank]
        shapes = [[self._shape_of_piece(name, rank) for name in own] for rank in ranks]
        pieces = self._exchange([[rows[name] for name in names[rank]] for rank in ranks], shapes)
        return {name: torch.cat([pieces[rank][i] for rank in ranks]) for i, name in enumerate(own)}

    def _exchange(self, sent: list[list[Tensor]], shapes: list[list[torch.Size]]) -> list[list[Tensor]]:
        """Send the tensors `sent[r]` to process r; returns those, of these `shapes`, that each process has sent."""
        sizes = [sum(map(prod, of_rank)) for of_rank in shapes]
        flat = [piece.reshape(-1) for pieces in sent for piece in pieces]
        given = torch.cat(flat) if flat else torch.empty(0, device=self.device)
        taken = torch.empty(sum(sizes), device=self.device)
        with self.world.exchanging():
            dist.all_to_all_single(taken, given, sizes, [sum(p.numel() for p in pieces) for pieces in sent])
        return [
            [piece.view(shape) for shape, piece in zip(of_rank, part.split(list(map(prod, of_rank))), strict=True)]
            for of_rank, part in zip(shapes, taken.split(sizes), strict=True)
        ]

    def _nothing(self, name: str) -> Tensor:
        """A tensor of the shape of the parameter that takes no memory."""
        return torch.zeros((), device=self.device).expand(self.sharded[name].shape)

    def _owns(self, name: str) -> bool:
        return self.owners[name] == self.world.rank

    def _of_whole(self, rank: int) -> list[str]:
        return [name for name in self.whole if self.owners[name] == rank]

    def _chunk(self, rows: int, rank: int) -> tuple[int, int]:
        size = -(-rows // self.world.size)
        return min(rows, rank * size), min(rows, (rank + 1) * size)

    def _piece(self, whole: Tensor, rank: int) -> Tensor:
        return whole[slice(*self._chunk(len(whole), rank))]

    def _shape_of_piece(self, name: str, rank: int) -> torch.Size:
        shape = self.sharded[name].shape
        first, end = self._chunk(shape[0], rank)
        return torch.Size((end - first, *shape[1:]))


class _LeafSums:
    """The progress of the sum over a step's leaves: as many of them as there are processes are added at a time."""

    def __init__(self, world: World) -> None:
        self.world, self.leaves, self.first = world, 0, 0

    def begin(self, leaves: int) -> None:
        self.leaves, self.first = leaves, 0

    @property
    def is_last(self) -> bool:
        return self.first + self.world.size == self.leaves


class _AllGather:
    """Torch's own, whose failure is that of another process."""

    def __init__(self, world: World) -> None:
        self.world = world

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        with self.world.exchanging():
            gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name from torch 2.13 on
            work: dist.Work | None = gather(output_tensor, input_tensor, group, async_op)
        return work


class _TreeReduceScatter:
    """In the place of a reduce-scatter: an all-to-all of slices, which are added in the order of `TreeSum`.

    The sum is there with the last leaves; before, what is put out is no gradient of anything.
    """

    def __init__(self, progress: _LeafSums) -> None:
        self.progress = progress
        self.total = TreeSum(0)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """(processes * S,) of this process -> (S,) of all; `op` would be a mean, which the loss has seen to."""
        world = self.progress.world
        if self.progress.first == 0:
            self.total = TreeSum(self.progress.leaves)
        received = torch.empty_like(input_tensor)
        with world.exchanging():
            dist.all_to_all_single(received, input_tensor, group=group)
        for leaf in received.view(world.size, -1):
            self.total.add(leaf)
        if self.progress.is_last:
            output_tensor.copy_(self.total.sums.pop())
        else:
            self.total.sums = [part.clone() if shares(part, received) else part for part in self.total.sums]


def shares(part: Tensor, whole: Tensor) -> bool:
    """True if `part` is memory of `whole`."""
    return part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def _local(tensor: Any) -> Tensor:
    """The rows of a DTensor that are here, in its own memory."""
    local: Tensor = tensor._local_tensor.detach()
    return local


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
