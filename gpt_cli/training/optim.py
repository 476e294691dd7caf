"""Muon for hidden matrices, AdamW for the rest; optimizer state by parameter name."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from gpt_cli.config import ModelConfig, OptimConfig
from gpt_cli.distributed.norms import n_pieces
from gpt_cli.distributed.shard import OwnedSlice, Shard, Zeros, share_out, slices, zeros_of
from gpt_cli.model.gpt import BASE_WIDTH, GPT
from gpt_cli.model.parameters import block_parameters
from gpt_cli.model.sizing import is_hidden_matrix
from gpt_cli.training.adamw import AdamW
from gpt_cli.training.muon import FusedUpdate, Muon, newton_schulz_batched


class MuonAdamW:
    """AdamW for every parameter, or Muon for the hidden matrices and AdamW for the rest, behind one `step`.

    State is kept by parameter name, so a checkpoint does not depend on the order of parameters.
    """

    def __init__(
        self,
        model: GPT,
        config: OptimConfig,
        matmul_dtype: torch.dtype = torch.float32,
        fused_muon: FusedUpdate | None = None,
        zeros: Zeros = zeros_of,
        parameters: Mapping[str, Tensor] | None = None,
        row_shard: Shard | None = None,
    ) -> None:
        """`zeros(name, parameter)` allocates state; `parameters`, if given, are updated in place of the model's.

        `row_shard`, if given, shards `parameters` by rows.
        """
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        parameters = self.trained if parameters is None else parameters
        by_muon = updated_by_muon({n: p.shape for n, p in parameters.items()}, config)
        matrices = {n: p for n, p in parameters.items() if n in by_muon}
        head_scale = min(1.0, BASE_WIDTH / model.config.n_embd) if config.name == "muon" else 1.0
        self.adamw = AdamW(
            {n: p for n, p in parameters.items() if n not in matrices},
            lr=config.peak_lr if config.name == "adamw" else config.adamw_lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            lr_scales={"head.weight": head_scale},
            zeros=zeros,
        )
        self.muon = Muon(
            matrices,
            fused_row_splits(model.config),
            lr=config.peak_lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            orthogonalise=partial(newton_schulz_batched, dtype=matmul_dtype),
            fused=fused_muon,
            zeros=zeros,
            row_shard=row_shard,
        )

    def step(self, lr_multiplier: float, found_inf: Tensor | None = None) -> None:
        """One update of every parameter, at `lr_multiplier` times the peak learning rates.

        Where `found_inf`, a scalar on the device, is 1, nothing changes: fp16 gradients have overflowed.
        """
        self.adamw.step(lr_multiplier, found_inf)
        self.muon.step(lr_multiplier, found_inf)

    def zero_grad(self) -> None:
        """Set the gradients of the model, and of tensors updated in its place, to None."""
        for parameters in (self.trained, self.adamw.parameters, self.muon.parameters):
            for parameter in parameters.values():
                parameter.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """The state itself, as named tensors: that of AdamW, and `momentum/NAME` of Muon."""
        return self.adamw.state_tensors() | {f"momentum/{name}": tensor for name, tensor in self.muon.buffers.items()}


def updated_by_muon(shapes: Mapping[str, Sequence[int]], config: OptimConfig) -> set[str]:
    """The names of the parameters that Muon updates; AdamW updates the others."""
    return {name for name, shape in shapes.items() if config.name == "muon" and is_hidden_matrix(name, tuple(shape))}


def state_owners(shapes: Mapping[str, Sequence[int]], config: OptimConfig, processes: int) -> dict[str, int]:
    """{parameter: the process that updates it}, balanced by Muon's operations, then by the bytes of AdamW's state."""
    by_muon = updated_by_muon(shapes, config)
    sizes = state_bytes(shapes, config)
    owners = share_out({n: math.prod(shapes[n]) * min(shapes[n]) for n in by_muon}, [0] * processes)
    loads = [sum(sizes[n] for n in by_muon if owners[n] == rank) for rank in range(processes)]
    return owners | share_out({n: size for n, size in sizes.items() if n not in by_muon}, loads)


def state_parts(
    shapes: Mapping[str, Sequence[int]], config: OptimConfig, processes: int
) -> dict[str, list[OwnedSlice]]:
    """{parameter: its slices and their owners}: as by `state_owners`, but AdamW's large parameters are cut up."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    by_muon = updated_by_muon(shapes, config)
    large = {name: size for name, size in sizes.items() if name not in by_muon and n_pieces(size) > 1}
    owners = state_owners({name: shape for name, shape in shapes.items() if name not in large}, config, processes)
    loads = [0] * processes
    for name, size in state_bytes(shapes, config).items():
        if name not in large:
            loads[owners[name]] += size
    whole = {name: [OwnedSlice(owner, 0, sizes[name])] for name, owner in owners.items()}
    return whole | slices(large, [size / 8 for size in loads])


def state_bytes(shapes: Mapping[str, Sequence[int]], config: OptimConfig) -> dict[str, int]:
    """The bytes of the state of each parameter: Muon's momentum, or AdamW's two moments, in fp32."""
    by_muon = updated_by_muon(shapes, config)
    return {name: (4 if name in by_muon else 8) * math.prod(shape) for name, shape in shapes.items()}


def fused_row_splits(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """{parameter name: the rows of each matrix that it stacks}."""
    blocks = (block_parameters(config, layer).values() for layer in range(config.n_layer))
    return {parameter.name: parameter.rows for block in blocks for parameter in block if parameter.rows}
