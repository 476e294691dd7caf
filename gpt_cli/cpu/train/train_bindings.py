"""ctypes bindings of network.c and muon.c, and the BLAS that they call for fp32."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpt_cli.cpu.common.kernel import KernelUnavailable, load_kernel
from gpt_cli.cpu.train.build_settings import KERNELS, has_bf16_products
from gpt_cli.errors import Notify


class Backend(ctypes.Structure):
    """`Backend` of gemm.h: what computes matrix products."""

    _fields_ = (("sgemm", ctypes.c_void_p), ("set_threads", ctypes.c_void_p), ("amx", ctypes.c_int))


@dataclass(frozen=True)
class NativeLibrary:
    """The functions of network.c and muon.c, compiled for one dtype."""

    calls: ctypes.CDLL
    backend: Backend
    dtype: torch.dtype  # of the inputs of matrix products

    @classmethod
    def load(cls, dtype: torch.dtype, note: Notify = lambda _: None, *, anew: bool = False) -> "NativeLibrary":
        """The code for `dtype`, fp32 or bf16, cached or compiled (always if `anew`). Raises KernelUnavailable."""
        bf16 = dtype == torch.bfloat16
        if bf16 and not has_bf16_products():
            raise KernelUnavailable(
                "in bf16 it needs a processor with AVX512-BF16 or, of ARM, BF16 (runtime.precision=fp32 does not)"
            )
        backend = Backend() if bf16 else _blas_of_torch()
        calls = load_kernel(KERNELS[bf16], anew=anew, note=note)
        _declare(calls)
        backend.amx = calls.amx_available()
        return cls(calls, backend, dtype)


def _blas_of_torch() -> Backend:
    try:
        torch_itself = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        functions = (torch_itself.sgemm_, torch_itself.MKL_Set_Num_Threads_Local)
    except (OSError, AttributeError) as error:
        raise KernelUnavailable("this build of torch brings no MKL, by which it multiplies in fp32") from error
    return Backend(*(ctypes.cast(function, ctypes.c_void_p) for function in functions))


def _declare(calls: ctypes.CDLL) -> None:
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    calls.pack_weights.argtypes, calls.pack_weights.restype = (pointer, integer), None
    calls.amx_available.argtypes, calls.amx_available.restype = (), integer
    calls.workspace_bytes.argtypes, calls.workspace_bytes.restype = (pointer, integer, integer, integer), size
    calls.loss_and_gradients.argtypes = (
        *(pointer, pointer, pointer, integer, integer, integer, integer, ctypes.c_float, ctypes.c_uint64),
        *(pointer, pointer, integer),
    )
    calls.loss_and_gradients.restype = ctypes.c_double
    calls.draw_dropout.argtypes, calls.draw_dropout.restype = (pointer, ctypes.c_uint64, integer, pointer), None
    calls.draw_attention_dropout.argtypes = (pointer, ctypes.c_uint64, integer, integer, pointer)
    calls.draw_attention_dropout.restype = None
    calls.muon_workspace_bytes.argtypes, calls.muon_workspace_bytes.restype = (ctypes.c_long, ctypes.c_long), size
    settings = (ctypes.c_float,) * 3
    calls.muon_update.argtypes = (pointer, pointer, integer, pointer, integer, *settings, pointer, size, integer)
    calls.muon_update.restype = None


def address(tensor: Tensor | None) -> int | None:
    """The address of a contiguous tensor."""
    return None if tensor is None else tensor.data_ptr()
