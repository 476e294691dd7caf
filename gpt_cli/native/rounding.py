"""Weights as the kernel keeps them: in fp32, bf16, or int8."""

from dataclasses import fields
from typing import Literal

import numpy as np

from gpt_cli.native.weights import Array, LayerWeights, Weights

WeightFormat = Literal["fp32", "bf16", "int8"]
FORMATS: tuple[WeightFormat, ...] = ("fp32", "bf16", "int8")
_ACTIVATION_STEPS = 127 * 256  # of int8, whose products are of integers: two bytes for what the weights meet
_CACHE_STEPS = 127  # of int8: one byte for what is kept of a text


def rounded(weights: Weights, format: WeightFormat) -> Weights:
    """The weights with their matrices as the kernel keeps them in `format`, in fp32 again."""
    matrices = ("qkv", "out", "up", "down")
    layers = tuple(
        LayerWeights(**{f.name: getattr(layer, f.name) for f in fields(layer)}
                     | {name: _round(getattr(layer, name), format) for name in matrices})
        for layer in weights.layers
    )  # fmt: skip
    kept = {f.name: getattr(weights, f.name) for f in fields(weights)}
    steps = {"activation_steps": _ACTIVATION_STEPS, "cache_steps": _CACHE_STEPS} if format == "int8" else {}
    return Weights(**kept | {"layers": layers, "head": _round(weights.head, format), **steps})


def _round(matrix: Array, format: WeightFormat) -> Array:
    if format == "bf16":
        words = matrix.view(np.uint32)
        return ((words + 0x7FFF + ((words >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    if format == "int8":
        most = np.abs(matrix).max(axis=1, keepdims=True)
        factor = np.divide(127, most, out=np.zeros_like(most), where=most > 0)
        kept: Array = np.rint(matrix * factor) * (most / 127)
        return kept
    return matrix
