"""The compiled kernel's functions, and what is passed to them."""

import ctypes

import numpy as np

from gpt_cli.cpu.common.c_model import MODEL_FIELDS, model_fields
from gpt_cli.cpu.common.kernel import load_kernel
from gpt_cli.cpu.decode.quantize import FORMATS, WeightDtype
from gpt_cli.cpu.decode.weights import Weights
from gpt_cli.errors import Notify
from gpt_cli.model.parameters import BLOCK_SLOTS, NETWORK_SLOTS


class Handle:
    """A pointer to an object of the kernel, which is freed with the handle."""

    def __init__(self, pointer: int | None, close: "ctypes._NamedFuncPointer") -> None:
        if not pointer:
            raise MemoryError("no room for the model and its texts")
        self.pointer = ctypes.c_void_p(pointer)
        self._close = close

    def __del__(self) -> None:
        if (pointer := getattr(self, "pointer", None)) is not None:
            self._close(pointer)


_SETTINGS = ("post_norm", "format", "threads", "use_amx")
_POINTERS = (*NETWORK_SLOTS, "cosines", "sines")


class _DecoderNetwork(ctypes.Structure):  # Network in network.h
    _fields_ = (
        *MODEL_FIELDS,
        *((name, ctypes.c_int32) for name in _SETTINGS),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    )


class _Layer(ctypes.Structure):  # Layer in network.h
    _fields_ = [(name, ctypes.c_void_p) for name in BLOCK_SLOTS]


class Sampling(ctypes.Structure):  # Sampling in sampling.h
    _fields_ = [
        ("temperature", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("top_p", ctypes.c_double),
        ("log_min_p", ctypes.c_float),
        ("use_min_p", ctypes.c_int32),
        ("n_banned", ctypes.c_int32),
        ("banned_tokens", ctypes.c_void_p),
    ]


def load_library(note: Notify, *, anew: bool = False) -> ctypes.CDLL:
    """The decoder's functions, compiled `anew` or as `load_kernel` finds them. Raises KernelUnavailable."""
    library = load_kernel(anew=anew, note=note)
    for name, result, arguments in (
        ("gpt_open", ctypes.c_void_p, 2),
        ("gpt_close", None, 1),
        ("gpt_begin", ctypes.c_void_p, 6),
        ("gpt_end", None, 1),
        ("gpt_write", ctypes.c_int32, 5),
        ("gpt_stop", None, 2),
        ("gpt_draft", ctypes.c_int32, 5),
        ("gpt_draft_stats", None, 2),
        ("gpt_score", None, 4),
        ("gpt_open_batch", ctypes.c_void_p, 1),
        ("gpt_close_batch", None, 1),
        ("gpt_join", ctypes.c_void_p, 8),
        ("gpt_leave", None, 1),
        ("gpt_seat_logits", ctypes.c_void_p, 1),
        ("gpt_accept", None, 2),
        ("gpt_step_batch", None, 6),
    ):
        getattr(library, name).restype = result
        integer_arguments = {"gpt_begin": {1}, "gpt_write": {1, 2}, "gpt_stop": {1}}
        integer_arguments |= {"gpt_draft": {3, 4}, "gpt_score": {2}, "gpt_accept": {1}}
        integer_arguments |= {"gpt_join": {2, 3, 5, 6, 7}, "gpt_step_batch": {2, 3, 4}}
        getattr(library, name).argtypes = [
            ctypes.c_int32 if i in integer_arguments.get(name, ()) else ctypes.c_void_p for i in range(arguments)
        ]
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
