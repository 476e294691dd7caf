"""The arrays of a checkpoint by their role in the network, and the tables of positions.

Shapes: C n_embd, D head_dim, F mlp_hidden, V vocabulary.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpt_cli.capabilities import NATIVE_DECODER
from gpt_cli.config import ModelConfig
from gpt_cli.model.parameters import BLOCK_SLOTS, block_parameters, parameters

Array = npt.NDArray[Any]  # fp32


class WeightMismatch(ValueError):  # noqa: N818 (named for what it says)
    """The arrays are not those of the config, or the config is not one that is decoded here."""


@dataclass(frozen=True)
class LayerWeights:
    """One block, by the slots of `gpt_cli/model/parameters.py`; None is a part that the model does not have."""

    norm1: Array
    norm1_bias: Array | None
    qkv: Array
    qkv_bias: Array | None
    q_norm: Array | None
    k_norm: Array | None
    out: Array
    out_bias: Array | None
    norm2: Array
    norm2_bias: Array | None
    up: Array  # of SwiGLU gate and up, (2F, C)
    up_bias: Array | None
    down: Array
    down_bias: Array | None


@dataclass(frozen=True)
class Weights:
    """A whole model, in fp32."""

    config: ModelConfig
    vocab_size: int
    tokens: Array  # (V, C)
    embedding_scale: float
    positions: Array | None  # (context, C): learned or sinusoids
    cosines: Array | None  # (context, D / 2): rotary
    sines: Array | None
    layers: tuple[LayerWeights, ...]
    norm: Array | None
    norm_bias: Array | None
    head: Array  # (V, C)
    activation_qmax: int | Literal["bf16"] | None = None
    """Steps from 0 to the largest value to which the rows that a matrix is multiplied by are rounded, or the nearest
    bf16. None: not."""
    kv_qmax: int | None = None
    """Keys and values are rounded to this many steps, each head's of a token by themselves; a step is a bf16."""


def nearest_bf16(x: Array) -> Array:
    """Rounded to bf16, ties to even, in fp32 again."""
    words = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def read_weights(config: ModelConfig, vocab_size: int, arrays: Mapping[str, npt.NDArray[Any]]) -> Weights:
    """The weights among `arrays`, named as in `GPT.state_dict()`.

    Raises WeightMismatch unless they are just these, and for a model with options that the decoder does not know.
    """
    if (reason := NATIVE_DECODER.refusal(config)) is not None:
        raise WeightMismatch(f"{NATIVE_DECODER.name} does not know {reason}")
    expected = {parameter.name: parameter.shape for parameter in parameters(config, vocab_size)}
    if expected.keys() != arrays.keys():
        raise WeightMismatch(f"not the tensors of this config: {sorted(expected.keys() ^ arrays.keys())[0]}")
    for name, shape in expected.items():
        if arrays[name].shape != shape or arrays[name].dtype != np.float32:
            raise WeightMismatch(f"tensor {name} has another shape or type")
    tensors: dict[str, Array] = {name: np.ascontiguousarray(arrays[name]) for name in expected}
    positions, cosines, sines = tensors.get("embedding.positions"), None, None
    if config.position == "sinusoidal":
        angles = _angles(config.context_length, _frequencies(config.n_embd, 10_000.0))
        positions = np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(config.context_length, config.n_embd)
    elif config.position == "rope":
        angles = _angles(config.context_length, rotary_frequencies(config))
        cosines, sines = np.cos(angles), np.sin(angles)
    return Weights(
        config=config,
        vocab_size=vocab_size,
        tokens=tensors["embedding.tokens.weight"],
        embedding_scale=math.sqrt(config.n_embd) if config.position == "sinusoidal" else 1.0,
        positions=positions,
        cosines=cosines,
        sines=sines,
        layers=tuple(_layer(config, tensors, layer) for layer in range(config.n_layer)),
        norm=tensors.get("norm.weight"),
        norm_bias=tensors.get("norm.bias"),
        head=tensors["head.weight"],
    )


def _layer(config: ModelConfig, tensors: Mapping[str, Array], layer: int) -> LayerWeights:
    slots = block_parameters(config, layer)
    parts: dict[str, Any] = {slot: tensors[slots[slot].name] if slot in slots else None for slot in BLOCK_SLOTS}
    return LayerWeights(**parts)


def rotary_frequencies(config: ModelConfig) -> Array:
    """(D / 2,) in fp32, as gpt_cli/model/position.py has them.

    NumPy's powers in fp32 are not torch's; those in fp64, rounded, are, but for a last bit of very few.
    """
    if config.rope_rounding == "power":
        frequencies = _frequencies(config.head_dim, config.rope_theta)
    else:
        powers = np.float64(config.rope_theta) ** _exponents(config.head_dim).astype(np.float64)
        frequencies = np.float32(1) / powers.astype(np.float32)
    return frequencies if config.rope_scaling is None else _scaled(frequencies, *config.rope_scaling)


def _scaled(frequencies: Array, factor: float, low: float, high: float, context: int) -> Array:
    waves = np.float32(2 * math.pi) / frequencies
    lowered = np.where(waves > np.float32(context / low), frequencies / np.float32(factor), frequencies)
    share = (np.float32(context) / waves - np.float32(low)) / np.float32(high - low)
    blended = (1 - share) * lowered / np.float32(factor) + share * lowered
    middle = (waves >= np.float32(context / high)) & (waves <= np.float32(context / low))
    return np.where(middle, blended, lowered).astype(np.float32)


def _exponents(width: int) -> Array:
    return np.arange(0, width, 2, dtype=np.float32) / np.float32(width)


def _frequencies(width: int, theta: float) -> Array:
    powers: Array = np.float32(theta) ** -_exponents(width)
    return powers


def _angles(length: int, frequencies: Array) -> Array:
    """(length, width / 2) in fp32, as gpt_cli/model/position.py has them."""
    return np.outer(np.arange(length, dtype=np.float32), frequencies).astype(np.float32)
