"""ctypes bindings of network.c and muon.c, and the BLAS that they call for fp32."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpt_cli.cpu.common.kernel import KernelUnavailable, declare, load_kernel
from gpt_cli.cpu.train.build_settings import KERNELS, has_bf16_products
from gpt_cli.errors import Notify


class Backend(ctypes.Structure):
    """`Backend` of gemm.h: what computes matrix products."""

    _fields_ = (("sgemm", ctypes.c_void_p), ("set_threads", ctypes.c_void_p), ("amx", ctypes.c_int))


_POINTER, _INT, _FLOAT, _SEED = ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_uint64
_FUNCTIONS = {
    "pack_weights": (None, (_POINTER, _INT)),
    "amx_available": (_INT, ()),
    "workspace_bytes": (ctypes.c_size_t, (_POINTER, _INT, _INT, _INT)),
    "loss_and_gradients": (
        ctypes.c_double,
        (*(_POINTER, _POINTER, _POINTER, _INT, _INT, _INT, _INT, _FLOAT, _SEED), *(_POINTER, _POINTER, _INT)),
    ),
    "draw_dropout": (None, (_POINTER, _SEED, _INT, _POINTER)),
    "draw_attention_dropout": (None, (_POINTER, _SEED, _INT, _INT, _POINTER)),
    "muon_workspace_bytes": (ctypes.c_size_t, (ctypes.c_long, ctypes.c_long)),
    "muon_update": (
        None,
        (*(_POINTER, _POINTER, _INT, _POINTER, _INT), *(_FLOAT, _FLOAT, _FLOAT), *(_POINTER, ctypes.c_size_t, _INT)),
    ),
}


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
        declare(calls, _FUNCTIONS)
        backend.amx = calls.amx_available()
        return cls(calls, backend, dtype)


def _blas_of_torch() -> Backend:
    try:
        torch_itself = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        functions = (torch_itself.sgemm_, torch_itself.MKL_Set_Num_Threads_Local)
    except (OSError, AttributeError) as error:
        raise KernelUnavailable("this build of torch brings no MKL, by which it multiplies in fp32") from error
    return Backend(*(ctypes.cast(function, ctypes.c_void_p) for function in functions))


def address(tensor: Tensor | None) -> int | None:
    """The address of a contiguous tensor."""
    return None if tensor is None else tensor.data_ptr()
