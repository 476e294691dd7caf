"""A safetensors file as NumPy arrays: what reading weights needs, without torch."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize

from gpt_cli.files import DamagedError

Arrays = dict[str, npt.NDArray[Any]]

TIED = "tied"  # the only metadata entry: several would be written in no fixed order
BF16 = np.dtype("V2")  # NumPy has no such numbers: two bytes each, for torch to make sense of
_DAMAGE = (SafetensorError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
_HEADER_LIMIT = 16 << 20
_TYPES: dict[str, npt.DTypeLike] = {
    **{"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": BF16, "BOOL": np.bool_},
    **{"I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8},
}


def unpack_arrays(data: bytes, source: str) -> Arrays:
    """The arrays of a safetensors file, which may be written to. Raises as `unpack` does."""
    return unpack(data, source, _to_arrays)


def _to_arrays(data: bytes) -> Arrays:
    return {
        name: np.frombuffer(entry["data"], _TYPES[entry["dtype"]]).reshape(entry["shape"])  # a bytearray of its own
        for name, entry in deserialize(data)  # type: ignore[no-untyped-call]
    }


def unpack(data: bytes, source: str, parse: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    """The tensors that `parse` finds in a safetensors file, by name; tied names share one.

    Raises DamagedError, naming `source`, for anything that is not such a file.
    """
    header = read_header(data, source)
    try:
        tensors = parse(data)
        for name, stored_name in json.loads(header.get("__metadata__", {}).get(TIED, "{}")).items():
            tensors[name] = tensors[stored_name]
    except _DAMAGE as error:
        raise DamagedError(f"{source} is not a safetensors file of tensors ({error})") from error
    return tensors


def read_header(data: bytes, source: str) -> dict[str, Any]:
    """Parse the header of a safetensors file. Raises DamagedError, naming `source`, if it says nothing."""
    size = int.from_bytes(data[:8], "little")
    try:
        return dict(json.loads(data[8 : 8 + size] if size <= _HEADER_LIMIT else b""))
    except (*_DAMAGE, RecursionError) as error:
        raise DamagedError(f"{source} is not a safetensors file of tensors") from error
