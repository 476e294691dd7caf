"""A safetensors file as NumPy arrays: what reading weights needs, without torch."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize

from gpt_cli.files import DamagedError

Arrays = dict[str, npt.NDArray[Any]]

TIED = "tied"  # the only metadata entry: several would be written in no fixed order
DAMAGE = (SafetensorError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
_HEADER_LIMIT = 16 << 20
BF16 = np.dtype("V2")  # NumPy has no such numbers: two bytes each, for torch to make sense of
_TYPES: dict[str, npt.DTypeLike] = {
    **{"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": BF16, "BOOL": np.bool_},
    **{"I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8},
}


def unpack_arrays(data: bytes, source: str) -> Arrays:
    """The arrays of a safetensors file; tied names share one array, and all may be written to.

    Raises DamagedError, naming `source`, for anything that is not such a file.
    """
    header = read_header(data, source)
    try:
        arrays = {
            name: np.frombuffer(bytearray(entry["data"]), _TYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in deserialize(data)  # type: ignore[no-untyped-call]
        }
        restore_tied(arrays, header)
    except DAMAGE as error:
        raise DamagedError(f"{source} is not a safetensors file of tensors ({error})") from error
    return arrays


def read_header(data: bytes, source: str) -> dict[str, Any]:
    """Parse the header of a safetensors file. Raises DamagedError, naming `source`, if it says nothing."""
    try:
        if len(data) < 8 or int.from_bytes(data[:8], "little") > _HEADER_LIMIT:
            raise ValueError("no header")
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return dict(header)
    except (*DAMAGE, RecursionError) as error:
        raise DamagedError(f"{source} is not a safetensors file of tensors") from error


def restore_tied(tensors: dict[str, Any], header: dict[str, Any]) -> None:
    """Give the names that the header ties to others what those have."""
    for name, stored_name in json.loads(header.get("__metadata__", {}).get(TIED, "{}")).items():
        tensors[name] = tensors[stored_name]
