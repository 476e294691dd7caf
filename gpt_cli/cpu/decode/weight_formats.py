"""The formats of weights, and weights rounded to them, in fp32: the reference of `pack_weight` in `gemm.h`."""

from dataclasses import replace
from typing import Literal

import numpy as np

from gpt_cli.cpu.decode.weights import Array, Weights, nearest_bf16

WeightDtype = Literal["fp32", "bf16", "int8"]
FORMATS: tuple[WeightDtype, ...] = ("fp32", "bf16", "int8")
_ACTIVATION_QMAX = 127 * 256  # of int8, whose products are of integers: two bytes for what the weights meet
_KV_QMAX = 127  # one byte for what is kept of a text


def fake_quantize(weights: Weights, format: WeightDtype) -> Weights:
    """The weights with their matrices rounded to `format`, in fp32."""
    matrices = ("qkv", "out", "up", "down")
    layers = tuple(
        replace(layer, **{name: _round(getattr(layer, name), format) for name in matrices}) for layer in weights.layers
    )
    rounded = replace(weights, layers=layers, head=_round(weights.head, format))
    if format == "fp32":
        return rounded
    return replace(rounded, activation_qmax=_ACTIVATION_QMAX if format == "int8" else "bf16", kv_qmax=_KV_QMAX)


def _round(matrix: Array, format: WeightDtype) -> Array:
    if format == "bf16":
        return nearest_bf16(matrix)
    if format == "int8":
        maximum = np.abs(matrix).max(axis=1, keepdims=True)
        factor = np.divide(127, maximum, out=np.zeros_like(maximum), where=maximum > 0)
        rounded: Array = np.rint(matrix * factor) * (maximum / 127)
        return rounded
    return matrix
