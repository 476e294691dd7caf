"""The network in NumPy: the same numbers as gpt_cli/model, one line for each of its operations.

Shapes: T tokens, S keys, C n_embd, H query heads, G key/value heads, D head_dim, F mlp_hidden, V vocabulary.
"""

import math
from typing import Literal

import numpy as np

from gpt_cli.cpu.decode.weights import Array, LayerWeights, Weights, nearest_bf16


class NumpyCache:
    """Keys and values of `length` positions: (layer, G, context, D) each."""

    def __init__(self, weights: Weights) -> None:
        config = weights.config
        shape = (config.n_layer, config.kv_heads, config.context_length, config.head_dim)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.length = 0


def forward(weights: Weights, tokens: list[int], cache: NumpyCache | None = None) -> Array:
    """(T,) tokens that continue what the cache holds -> (T, V) logits."""
    config = weights.config
    cache = NumpyCache(weights) if cache is None else cache
    start, end = cache.length, cache.length + len(tokens)
    x = weights.tokens[tokens] * np.float32(weights.embedding_scale)  # (T, C)
    if weights.positions is not None:
        x = x + weights.positions[start:end]
    for index, layer in enumerate(weights.layers):
        if config.norm_position == "pre":
            x = x + _attention(weights, layer, index, _norm(weights, x, layer.norm1, layer.norm1_bias), cache)
            x = x + _mlp(weights, layer, _norm(weights, x, layer.norm2, layer.norm2_bias))
        else:
            attended = x + _attention(weights, layer, index, x, cache)
            x = _norm(weights, attended, layer.norm1, layer.norm1_bias)
            x = _norm(weights, x + _mlp(weights, layer, x), layer.norm2, layer.norm2_bias)
    cache.length = end
    if weights.norm is not None:
        x = _norm(weights, x, weights.norm, weights.norm_bias)
    logits = _linear(weights, x, weights.head, None)
    if config.logit_softcap is not None:
        cap = np.float32(config.logit_softcap)
        logits = cap * np.tanh(logits / cap)
    return logits


def _attention(weights: Weights, layer: LayerWeights, index: int, x: Array, cache: NumpyCache) -> Array:
    config, start, end = weights.config, cache.length, cache.length + len(x)
    heads, groups, width = config.n_head, config.kv_heads, config.head_dim
    qkv = _linear(weights, x, layer.qkv, layer.qkv_bias).reshape(len(x), -1, width).swapaxes(0, 1)  # (H + 2G, T, D)
    q, k, v = qkv[:heads], qkv[heads : heads + groups], qkv[heads + groups :]
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = _rms(q, layer.q_norm, config.norm_eps), _rms(k, layer.k_norm, config.norm_eps)
    q, k = _rotate(weights, q, start), _rotate(weights, k, start)
    k, v = _quantize_kv(k, weights.kv_qmax), _quantize_kv(v, weights.kv_qmax)
    cache.keys[index, :, start:end], cache.values[index, :, start:end] = k, v
    keys = cache.keys[index, :, :end].repeat(heads // groups, axis=0)  # (H, S, D)
    values = cache.values[index, :, :end].repeat(heads // groups, axis=0)
    scores = q @ keys.swapaxes(1, 2) / np.float32(math.sqrt(width))  # (H, T, S)
    query, key = np.arange(start, end)[:, None], np.arange(end)
    hidden = key > query if config.window is None else (key > query) | (key <= query - config.window)
    y = _softmax(np.where(hidden, np.float32(-np.inf), scores)) @ values  # (H, T, D)
    return _linear(weights, y.swapaxes(0, 1).reshape(len(x), -1), layer.out, layer.out_bias)


def _mlp(weights: Weights, layer: LayerWeights, x: Array) -> Array:
    hidden = _linear(weights, x, layer.up, layer.up_bias)
    match weights.config.mlp:
        case "swiglu":
            gate, up = np.split(hidden, 2, axis=-1)
            hidden = gate * _sigmoid(gate) * up
        case "gelu":
            cubic = np.float32(math.sqrt(2 / math.pi)) * (hidden + np.float32(0.044715) * hidden**3)
            hidden = np.float32(0.5) * hidden * (1 + np.tanh(cubic))
        case "relu":
            hidden = np.maximum(hidden, 0)
        case "relu2":
            hidden = np.maximum(hidden, 0) ** 2
    return _linear(weights, hidden, layer.down, layer.down_bias)


def _linear(weights: Weights, x: Array, matrix: Array, bias: Array | None) -> Array:
    y: Array = _quantize_activations(x, weights.activation_qmax) @ matrix.T
    return y if bias is None else y + bias


def _quantize_activations(x: Array, steps: int | Literal["bf16"] | None) -> Array:
    """(..., n) rounded to `steps` from 0 to the largest of the last axis, or to the nearest bf16."""
    if steps is None:
        return x
    if steps == "bf16":
        return nearest_bf16(x)
    return _round_to_scale(x, np.abs(x).max(axis=-1, keepdims=True) / np.float32(steps))


def _quantize_kv(x: Array, steps: int | None) -> Array:
    """(..., n) rounded to at most `steps` of the last axis from 0, a step being the next bf16 that is large enough."""
    if steps is None:
        return x
    least = np.abs(x).max(axis=-1, keepdims=True) / np.float32(steps)
    return _round_to_scale(x, ((least.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32))


def _round_to_scale(x: Array, step: Array) -> Array:
    y: Array = np.rint(np.divide(x, step, out=np.zeros_like(x), where=step > 0)) * step
    return y


def _norm(weights: Weights, x: Array, gain: Array, bias: Array | None) -> Array:
    if weights.config.norm == "rmsnorm":
        return _rms(x, gain, weights.config.norm_eps)
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    y: Array = centred / np.sqrt(variance + np.float32(weights.config.norm_eps)) * gain
    return y if bias is None else y + bias


def _rms(x: Array, gain: Array, eps: float) -> Array:
    y: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.float32(eps)) * gain
    return y


def _rotate(weights: Weights, x: Array, start: int) -> Array:
    """(heads, T, D) -> the same, dimensions i and i + D / 2 turned by the angle of their position."""
    if weights.cosines is None or weights.sines is None:
        return x
    cosine, sine = (table[start : start + x.shape[1]] for table in (weights.cosines, weights.sines))
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate((a * cosine - b * sine, b * cosine + a * sine), axis=-1)


def _sigmoid(x: Array) -> Array:
    y: Array = 1 / (1 + np.exp(-np.clip(x, -80, 80)))
    return y


def _softmax(scores: Array) -> Array:
    powers: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares
