"""Named tensors as bytes and back: safetensors, finite, tied ones once, and never a surprise on loading."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import torch as safetensors_torch
from torch import Tensor

from gpt_cli.errors import UserError
from gpt_cli.run.arrays import BF16, TIED, Arrays, unpack

Specs = Mapping[str, tuple[torch.Size, torch.dtype]]
"""The shape and type of each tensor, by name."""


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """`tensors` as a safetensors file: the same tensors give the same bytes.

    Names that share one tensor (tied embeddings) store it once, under the first of them.
    """
    first: dict[object, str] = {}
    tied: dict[str, str] = {}
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and (shared := first.setdefault(place, name)) != name:
            tied[name] = shared
        else:
            stored[name] = tensor.detach().cpu().contiguous()
    return safetensors_torch.save(stored, {TIED: json.dumps(tied, sort_keys=True)} if tied else None)


def unpack_tensors(data: bytes, source: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU. Raises as `unpack` does."""
    return unpack(data, source, safetensors_torch.load)


def as_tensors(arrays: Arrays) -> dict[str, Tensor]:
    """The same numbers in the same memory as tensors; what shares an array shares a tensor."""
    tensors_by_id = {id(array): _as_tensor(array) for array in arrays.values()}
    return {name: tensors_by_id[id(array)] for name, array in arrays.items()}


def _as_tensor(array: npt.NDArray[Any]) -> Tensor:
    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def require_finite(tensors: Mapping[str, Tensor], description: str) -> None:
    """Raise UserError, naming the first bad one of `tensors`, unless every number in them is finite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = f"{int((~torch.isfinite(tensor)).sum()):,} values of {tensor.numel():,} that are not finite"
            raise UserError(f"{description} {name} has {bad}: nothing was saved", kind="another run")


def tensor_specs(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """The shape and type of each tensor, by name."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def check_tensors(tensors: Mapping[str, Tensor], expected: Specs) -> None:
    """Raise UserError unless `tensors` are exactly those `expected`, by name, shape and type.

    To be called before the first of them is copied into a model or an optimizer.
    """
    actual = tensor_specs(tensors)
    missing, foreign = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    problems = [f"{name} is missing" for name in missing] or [f"{name} has no place in it" for name in foreign]
    problems = problems or [
        f"{name} is {_describe(*actual[name])}, not {_describe(*spec)}"
        for name, spec in expected.items()
        if actual[name] != spec
    ]
    if problems:
        raise UserError(f"the checkpoint does not fit its config: tensor {problems[0]}")


def _describe(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
