"""The compiled code and the matrix products it is given."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpt_cli.native.kernel import NoKernel, load_kernel, processor_flags
from gpt_cli.training.native.sources import OPTIONS, SOURCES


class Blas(ctypes.Structure):
    """`Blas` of real.h: functions of the BLAS that torch brings."""

    _fields_ = (("gemm", ctypes.c_void_p), ("set_threads", ctypes.c_void_p))


@dataclass(frozen=True)
class NativeLibrary:
    """The functions of network.c and muon.c, for one type of number."""

    calls: ctypes.CDLL
    blas: Blas
    dtype: torch.dtype  # what products read

    @classmethod
    def load(cls, dtype: torch.dtype) -> "NativeLibrary":
        """The code for `dtype`, fp32 or bf16, compiled now or taken from the cache. Raises NoKernel."""
        if dtype == torch.bfloat16 and "amx_bf16" not in processor_flags():
            raise NoKernel("its products in bf16 need a processor with AMX")
        blas = _blas_of_torch(dtype)
        calls = load_kernel(*SOURCES, options=OPTIONS[dtype == torch.bfloat16])
        _declare(calls)
        return cls(calls, blas, dtype)


def _blas_of_torch(dtype: torch.dtype) -> Blas:
    name = "cblas_gemm_bf16bf16f32" if dtype == torch.bfloat16 else "sgemm_"
    try:
        torch_itself = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        functions = (getattr(torch_itself, name), torch_itself.MKL_Set_Num_Threads_Local)
    except (OSError, AttributeError) as error:
        raise NoKernel("this build of torch brings no MKL") from error
    return Blas(*(ctypes.cast(function, ctypes.c_void_p) for function in functions))


def _declare(calls: ctypes.CDLL) -> None:
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    calls.read_parameters.argtypes, calls.read_parameters.restype = (pointer,), None
    calls.room_bytes.argtypes, calls.room_bytes.restype = (pointer, integer, integer), size
    calls.loss_and_gradients.argtypes = (
        *(pointer, pointer, pointer, integer, integer, integer, integer, ctypes.c_float),
        *(pointer, pointer, integer),
    )
    calls.loss_and_gradients.restype = ctypes.c_double
    calls.orthogonalise_bytes.argtypes, calls.orthogonalise_bytes.restype = (ctypes.c_long, ctypes.c_long), size
    calls.orthogonalise.argtypes = (pointer, pointer, integer, pointer, integer, pointer, size, integer)
    calls.orthogonalise.restype = None


def address(tensor: Tensor | None) -> int | None:
    """Where the elements of a contiguous tensor are."""
    return None if tensor is None else tensor.data_ptr()
