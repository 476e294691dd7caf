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
from gpt_cli.files import DamagedError
from gpt_cli.run.arrays import BF16, DAMAGE, TIED, Arrays, read_header, restore_tied


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """`tensors` as a safetensors file: the same tensors give the same bytes.

    Names that share one tensor (tied embeddings) store it once, under the first of them.
    """
    first: dict[object, str] = {}
    tied: dict[str, str] = {}
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and place in first:
            tied[name] = first[place]
        else:
            first[place] = name
            stored[name] = tensor.detach().cpu().contiguous()
    metadata = {TIED: json.dumps(tied, sort_keys=True)} if tied else None
    return safetensors_torch.save(stored, metadata)


def unpack_tensors(data: bytes, source: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU; tied names share one tensor.

    Raises DamagedError, naming `source`, for anything that is not such a file.
    """
    header = read_header(data, source)
    try:
        tensors = safetensors_torch.load(data)
        restore_tied(tensors, header)
    except DAMAGE as error:
        raise DamagedError(f"{source} is not a safetensors file of tensors ({error})") from error
    return tensors


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
            bad = int((~torch.isfinite(tensor)).sum())
            raise UserError(
                f"{description} {name} has {bad:,} values of {tensor.numel():,} that are not finite: nothing was saved",
                kind="another run",
            )


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[torch.Size, torch.dtype]]) -> None:
    """Raise UserError unless `tensors` are exactly those `expected`, by name, shape and type.

    To be called before the first of them is copied into a model or an optimizer.
    """
    if missing := sorted(expected.keys() - tensors.keys()):
        raise UserError(f"the checkpoint does not fit its config: tensor {missing[0]} is missing")
    if foreign := sorted(tensors.keys() - expected.keys()):
        raise UserError(f"the checkpoint does not fit its config: tensor {foreign[0]} has no place in it")
    for name, (shape, dtype) in expected.items():
        tensor = tensors[name]
        if (tensor.shape, tensor.dtype) != (shape, dtype):
            raise UserError(
                f"the checkpoint does not fit its config: tensor {name} is {_describe(tensor.shape, tensor.dtype)},"
                f" not {_describe(shape, dtype)}"
            )


def _describe(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
