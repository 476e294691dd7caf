"""The compiled kernel's functions, and what is passed to them."""

import ctypes

import numpy as np

from gpt_cli.cpu.common.c_model import MODEL_FIELDS, model_fields
from gpt_cli.cpu.common.kernel import declare, load_kernel
from gpt_cli.cpu.decode.weight_formats import FORMATS, WeightDtype
from gpt_cli.cpu.decode.weights import Weights
from gpt_cli.errors import Notify
from gpt_cli.model.parameters import BLOCK_SLOTS, NETWORK_SLOTS


class Handle:
    """A pointer to an object of the kernel, which is freed with the handle."""

    def __init__(self, pointer: int | None, close: "ctypes._NamedFuncPointer") -> None:
        if not pointer:
            raise MemoryError("not enough memory for the model and its texts")
        self.pointer = ctypes.c_void_p(pointer)
        self._close = close

    def __del__(self) -> None:
        if (pointer := getattr(self, "pointer", None)) is not None:
            self._close(pointer)


_SETTINGS = ("post_norm", "format", "threads", "use_amx")
_POINTERS = (*NETWORK_SLOTS, "cosines", "sines")


class _DecoderNetwork(ctypes.Structure):  # Network in model.h
    _fields_ = (
        *MODEL_FIELDS,
        *((name, ctypes.c_int32) for name in _SETTINGS),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    )


class _Layer(ctypes.Structure):  # Layer in model.h
    _fields_ = [(name, ctypes.c_void_p) for name in BLOCK_SLOTS]


class Sampling(ctypes.Structure):  # Sampling in sampling.h
    _fields_ = [
        ("temperature", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("top_p", ctypes.c_double),
        ("log_min_p", ctypes.c_float),
        ("use_min_p", ctypes.c_int32),
        ("n_banned", ctypes.c_int32),
        ("n_ends", ctypes.c_int32),
        ("token_lists", ctypes.c_void_p),
    ]


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int32
_FUNCTIONS = {
    "gpt_open": (_POINTER, (_POINTER, _POINTER)),
    "gpt_close": (None, (_POINTER,)),
    "gpt_begin": (_POINTER, (_POINTER, _INT, _POINTER, _POINTER, _POINTER, _POINTER)),
    "gpt_end": (None, (_POINTER,)),
    "gpt_write": (_INT, (_POINTER, _INT, _POINTER, _POINTER)),
    "gpt_stop": (None, (_POINTER, _INT)),
    "gpt_mask": (None, (_POINTER, _POINTER, _INT)),
    "gpt_score": (None, (_POINTER, _POINTER, _INT, _POINTER)),
    "gpt_open_batch": (_POINTER, (_POINTER,)),
    "gpt_close_batch": (None, (_POINTER,)),
    "gpt_join": (_POINTER, (_POINTER, _POINTER, _INT, _INT, _POINTER, _INT, _INT)),
    "gpt_leave": (None, (_POINTER,)),
    "gpt_seat_logits": (_POINTER, (_POINTER,)),
    "gpt_accept": (None, (_POINTER, _INT)),
    "gpt_mask_seat": (None, (_POINTER, _POINTER)),
    "gpt_step_batch": (None, (_POINTER, _POINTER, _INT, _INT, _INT, _POINTER)),
}


def load_library(note: Notify, *, anew: bool = False) -> ctypes.CDLL:
    """The decoder's functions, compiled `anew` or as `load_kernel` finds them. Raises KernelUnavailable."""
    library = load_kernel(anew=anew, note=note)
    declare(library, _FUNCTIONS)
    return library


def to_c_structs(
    weights: Weights, format: WeightDtype, threads: int, use_amx: bool
) -> tuple[_DecoderNetwork, "ctypes.Array[_Layer]"]:
    config = weights.config
    net = _DecoderNetwork(
        **model_fields(config, weights.vocab_size, weights.embedding_scale),
        post_norm=config.norm_position == "post",
        format=FORMATS.index(format),
        threads=threads,
        use_amx=use_amx,
        **{name: address(getattr(weights, name)) for name in _POINTERS},
    )
    layers = (_Layer * config.n_layer)(
        *(_Layer(*(address(getattr(layer, name)) for name in BLOCK_SLOTS)) for layer in weights.layers)
    )
    return net, layers


def address(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None") -> int | None:
    """The address of an array's data; the caller keeps the array alive."""
    return None if array is None else array.ctypes.data
