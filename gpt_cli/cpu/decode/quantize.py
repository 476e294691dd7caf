"""Weights as the kernel keeps them: in fp32, bf16, or int8."""

from dataclasses import fields
from typing import Literal

import numpy as np

from gpt_cli.cpu.decode.weights import Array, LayerWeights, Weights, nearest_bf16

WeightDtype = Literal["fp32", "bf16", "int8"]
FORMATS: tuple[WeightDtype, ...] = ("fp32", "bf16", "int8")
_ACTIVATION_QMAX = 127 * 256  # of int8, whose products are of integers: two bytes for what the weights meet
_KV_QMAX = 127  # one byte for what is kept of a text


def fake_quantize(weights: Weights, format: WeightDtype) -> Weights:
    """The weights with their matrices as the kernel keeps them in `format`, in fp32 again."""
    matrices = ("qkv", "out", "up", "down")
    layers = tuple(
        LayerWeights(**{f.name: getattr(layer, f.name) for f in fields(layer)}
                     | {name: _round(getattr(layer, name), format) for name in matrices})
        for layer in weights.layers
    )  # fmt: skip
    kept = {f.name: getattr(weights, f.name) for f in fields(weights)}
    kept |= {"layers": layers, "head": _round(weights.head, format)}
    if format != "fp32":
        kept |= {"activation_qmax": _ACTIVATION_QMAX if format == "int8" else "bf16", "kv_qmax": _KV_QMAX}
    return Weights(**kept)


def _round(matrix: Array, format: WeightDtype) -> Array:
    if format == "bf16":
        return nearest_bf16(matrix)
    if format == "int8":
        most = np.abs(matrix).max(axis=1, keepdims=True)
        factor = np.divide(127, most, out=np.zeros_like(most), where=most > 0)
        kept: Array = np.rint(matrix * factor) * (most / 127)
        return kept
    return matrix
