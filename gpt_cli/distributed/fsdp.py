"""Weights, gradients and optimizer sharded over all processes (FSDP), with the sums of `reduce.py`.

`torch.distributed.fsdp.fully_shard` stores some rows of each parameter in each process, gathers a block when it is
computed, and gives each process its rows of the gradient (Zhao et al., 2023, "PyTorch FSDP"). Its reduce-scatter is
replaced by a sum whose order does not depend on the number of processes. One process temporarily gets all rows of a
parameter that is updated as a whole (Muon's), and of a gradient for its norm. Vectors, which are small, are replicated:
cut up, their last elements could fall out of full registers, where kernels round differently.

Shapes: R rows of a parameter, of which process r has chunk r of ceil(R / processes); S elements of a slice.
"""

import warnings
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
    """The rows of each parameter in this process, and the tensors that it updates.

    `optimized` are the tensors that the optimizer updates: these rows, in the model's memory, and vectors; but of names
    in `whole` all rows, in the process that owns them, and only from `updated` to `broadcast_weights`.
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
        """Shard `model`, in place, by `blocks`; one at a time is gathered on `device`.

        `model.features` may be called like `model` itself.
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
        # of an in-place operation on a view that a module returns: there is none
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
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
        is_stored = name not in self.whole or self._owns(name)
        return torch.zeros(parameter.shape, device=self.device if is_stored else "meta")

    def each_leaf(self, rank_leaves: Iterable[int], leaves: int) -> Iterator[int]:
        """See `Shard`. The gradients are complete after the last leaf."""
        self.progress.begin(leaves)
        for leaf in rank_leaves:
            yield leaf
            self._add_vectors()
            if not self.progress.is_last:  # `grad` is incomplete
                for parameter in self.sharded.values():
                    parameter.grad = None
            self.progress.first += self.world.size

    @torch.no_grad()
    def _add_vectors(self) -> None:
        """Add the gradients of vectors; after the last leaf `grad` is their sum, before it is None."""
        gradients = [_gradient(vector).reshape(-1) for vector in self.vectors.values()]
        if not gradients:
            return
        sizes = [gradient.numel() for gradient in gradients]
        size = -(-sum(sizes) // self.world.size)
        gradients.append(gradients[0].new_zeros(size * self.world.size - sum(sizes)))
        reduced = gradients[0].new_empty(size)
        self.vector_sums(reduced, torch.cat(gradients), dist.group.WORLD, None)
        whole = [torch.empty_like(reduced) for _ in range(self.world.size if self.progress.is_last else 0)]
        if whole:
            with self.world.exchanging():
                dist.all_gather(whole, reduced)
        pieces = torch.cat(whole)[: sum(sizes)].split(sizes) if whole else [None] * len(sizes)
        for vector, piece in zip(self.vectors.values(), pieces, strict=True):
            vector.grad = None if piece is None else piece.view_as(vector)

    @torch.no_grad()
    def updated(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """See `Shard`: rows, and whole parameters that this process owns."""
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
        """See `Shard`. Norms are of whole gradients: those of rows would add up to other bits."""
        gradients = self._to_owners(
            {name: _gradient(self.optimized[name]) for name in self.rows if name not in self.whole}
        )
        gradients |= {n: _gradient(self.optimized[n]) for n in (*self.whole, *self.vectors) if self._owns(n)}
        norms = torch.zeros(len(self.parameters), device=self.device)
        if gradients:
            indices = {name: index for index, name in enumerate(self.optimized)}
            norms[[indices[name] for name in gradients]] = torch.stack(norms_of(list(gradients.values())))
        return self.world.all_reduce_disjoint(norms)

    @torch.no_grad()
    def broadcast_weights(self) -> None:
        """See `Shard`: send the rows of whole parameters back to their processes."""
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
        collected = {}
        for key, tensor in state.items():
            name = key.rpartition("/")[2]
            if name in self.whole:
                collected[key] = self.world.send_to_main(tensor, self.owners[name])
            else:
                collected[key] = self._gather_rows(key, tensor) if name in self.names else tensor
        return collected

    def collect_rows(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Shard`."""
        gathered: dict[int, Tensor] = {}  # by identity: tied weights have two names
        for key, tensor in tensors.items():
            if id(tensor) not in gathered:
                gathered[id(tensor)] = (
                    self._gather_rows(key, tensor) if key.rpartition("/")[2] in self.names else tensor
                )
        return {key: gathered[id(tensor)] for key, tensor in tensors.items()}

    def _gather_rows(self, key: str, rows: Tensor) -> Tensor:
        """All rows in process 0, on the host; in the others their own rows."""
        shape, pieces = self.shape_of(key, rows), [rows.detach().cpu()]
        for rank in range(1, self.world.size):
            first, end = self._chunk(shape[0], rank)
            if first < end:
                piece = rows if rank == self.world.rank else rows.new_empty((end - first, *shape[1:]), device="meta")
                pieces.append(self.world.send_to_main(piece, rank))
        return torch.cat(pieces) if self.world.is_main else rows

    def _to_owners(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather the rows of each tensor in the process that owns it; returns the tensors that this process owns."""
        ranks = range(self.world.size)
        names = [[name for name in rows if self.owners[name] == rank] for rank in ranks]
        owned = names[self.world.rank]
        shapes = [[self._shape_of_piece(name, rank) for name in owned] for rank in ranks]
        pieces = self._exchange([[rows[name] for name in names[rank]] for rank in ranks], shapes)
        return {name: torch.cat([pieces[rank][i] for rank in ranks]) for i, name in enumerate(owned)}

    def _exchange(self, sent: list[list[Tensor]], shapes: list[list[torch.Size]]) -> list[list[Tensor]]:
        """Send the tensors `sent[r]` to process r; returns the tensors received from each, of these `shapes`."""
        sizes = [sum(map(prod, rank_shapes)) for rank_shapes in shapes]
        flat = [piece.reshape(-1) for pieces in sent for piece in pieces]
        send_buffer = torch.cat(flat) if flat else torch.empty(0, device=self.device)
        receive_buffer = torch.empty(sum(sizes), device=self.device)
        with self.world.exchanging():
            dist.all_to_all_single(
                receive_buffer, send_buffer, sizes, [sum(p.numel() for p in pieces) for pieces in sent]
            )
        return [
            [
                piece.view(shape)
                for shape, piece in zip(rank_shapes, part.split(list(map(prod, rank_shapes))), strict=True)
            ]
            for rank_shapes, part in zip(shapes, receive_buffer.split(sizes), strict=True)
        ]

    def _nothing(self, name: str) -> Tensor:
        """A placeholder with the shape of the parameter, without memory."""
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
    """The progress of the sum over a step's leaves; each process adds one at a time."""

    def __init__(self, world: World) -> None:
        self.world, self.leaves, self.first = world, 0, 0

    def begin(self, leaves: int) -> None:
        self.leaves, self.first = leaves, 0

    @property
    def is_last(self) -> bool:
        return self.first + self.world.size == self.leaves


class _AllGather:
    """Torch's all-gather, with errors as LostProcessError."""

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
    """Replaces the reduce-scatter by an all-to-all of slices, which are added in the order of `TreeSum`.

    The output is valid only with the last leaves.
    """

    def __init__(self, progress: _LeafSums) -> None:
        self.progress = progress
        self.total = TreeSum(0)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """(processes * S,) of this process -> (S,), the sum over all; `op`, a mean, is ignored: the loss is scaled."""
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
    """True if `part` shares the memory of `whole`."""
    return part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def _local(tensor: Any) -> Tensor:
    """The local rows of a DTensor, in its memory."""
    local: Tensor = tensor._local_tensor.detach()
    return local


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
