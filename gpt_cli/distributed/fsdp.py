"""Weights, gradients and optimizer sharded over all processes by torch's `fully_shard`.

Each process stores some rows of every parameter. A block is gathered when it is computed, and each process receives its
rows of the summed gradient (Zhao et al., 2023, "PyTorch FSDP").
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from gpt_cli.distributed.shard import Shard
from gpt_cli.distributed.world import World


class FullShard(Shard):
    """The rows of each parameter in this process, in the model's memory, which the optimizer updates."""

    is_full = True

    def __init__(self, model: nn.Module, blocks: Iterable[nn.Module], world: World, device: torch.device) -> None:
        """Shard `model`, in place, by `blocks`; `model.features` may be called like `model` itself."""
        mesh = init_device_mesh(device.type, (world.size,))
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the names from torch 2.13 on
        reduce = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        for module in (*blocks, model):
            sharded = fully_shard(module, mesh=mesh)
            sharded.set_custom_all_gather(_Collective(world, gather))  # type: ignore[arg-type]
            sharded.set_custom_reduce_scatter(_Collective(world, reduce))  # type: ignore[arg-type]
            sharded.set_gradient_divide_factor(1.0)  # a sum: the loss is divided already
            sharded.set_force_sum_reduction_for_comms(True)
        register_fsdp_forward_method(model, "features")
        # The head may return a view; no operation changes it in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
        self.sharded: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
        rows = {parameter: parameter.detach().to_local() for parameter in self.sharded.values()}
        self.rows = {name: rows[parameter] for name, parameter in self.sharded.items()}
        super().__init__({name: self.rows[name] for name, _ in model.named_parameters()}, world)

    def updated(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """See `Shard`."""
        for name, rows in self.optimized.items():
            rows.grad = self.sharded[name].grad.to_local()
        return self.parameters

    def gradient_norms(self, parameters: Iterable[Tensor]) -> Tensor:
        """See `Shard`."""
        squares = super().gradient_norms(parameters).square()
        with self.world.exchanging():
            dist.all_reduce(squares)
        return squares.sqrt()

    def local_state(self, model: nn.Module) -> dict[str, Tensor]:
        """See `Shard`."""
        return {name: self.rows.get(name, tensor) for name, tensor in model.state_dict().items()}

    def shape_of(self, key: str, local: Tensor) -> torch.Size:
        """See `Shard`."""
        parameter = self._parameter(key)
        return local.shape if parameter is None else parameter.shape

    def local_part(self, key: str, local: Tensor, whole: Tensor) -> Tensor:
        """See `Shard`."""
        if self._parameter(key) is None:
            return whole
        size = -(-len(whole) // self.world.size)
        return whole[self.world.rank * size : (self.world.rank + 1) * size]

    def gather(self, key: str, local: Tensor) -> Tensor:
        """See `Shard`."""
        if (parameter := self._parameter(key)) is None:
            return local
        whole = DTensor.from_local(
            local, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
        )
        with self.world.exchanging():
            return whole.full_tensor()

    def collect(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Shard`."""
        collected: dict[int, Tensor] = {}  # by identity: tied weights have two names
        for key, local in state.items():
            if id(local) not in collected:
                whole = self.gather(key, local)
                collected[id(local)] = whole.cpu() if self.world.is_main else local
        return {key: collected[id(local)] for key, local in state.items()}

    collect_rows = collect

    def _parameter(self, key: str) -> Any:
        """The parameter NAME of a key NAME or KIND/NAME; None if there is none."""
        return self.sharded.get(key.rpartition("/")[2])


class _Collective:
    """A collective operation of torch whose failure is a LostProcessError."""

    def __init__(self, world: World, operation: Callable[..., Any]) -> None:
        self.world, self.operation = world, operation

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **options: Any) -> Any:
        with self.world.exchanging():
            return self.operation(output_tensor, input_tensor, **options)
