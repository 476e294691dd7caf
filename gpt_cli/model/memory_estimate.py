"""An estimate of the memory that training with torch takes, before any of it is allocated.

The C engine keeps fewer activations; `gpt train --dry-run` allows for that (`search/dry_run.py`).

Shapes: N tokens per forward pass, C n_embd, F mlp_hidden, V vocabulary.
"""

import math

import torch

from gpt_cli.config import Config
from gpt_cli.model.chunked_loss import max_chunk_logits, rows_per_chunk
from gpt_cli.model.sizing import is_hidden_matrix, parameter_table

_FP32_BYTES = 4  # weights, gradients, the residual stream, the loss
# Tensors of the hidden width that autograd saves for the backward pass of an activation: its input and its output
# (one for relu; swiglu saves both halves, the activated gate and the product).
_SAVED_BY_MLP = {"relu": 1, "gelu": 2, "relu2": 2, "swiglu": 4}


def estimate_memory(config: Config, vocab_size: int, device: torch.device, matmul_dtype: torch.dtype) -> dict[str, int]:
    """{use: bytes} of weights, gradients, optimizer and activations; their sum is the peak of a step.

    For eager steps with fused kernels of attention and norms, as on a GPU; compiled steps and the C engine take less.
    Where a step is one forward pass, gradients are allocated as activations are freed: shared bytes count as gradients.
    """
    model, train = config.model, config.train
    table = parameter_table(model, vocab_size)
    n_outputs = vocab_size if config.task.kind == "language" else len(config.task.labels or "ab")
    parameters = sum(n for _, _, n in table) - (vocab_size - n_outputs) * model.n_embd
    matrices = sum(n for name, shape, n in table if is_hidden_matrix(name, shape))
    trained, state = parameters, 2 * parameters - (matrices if config.optim.name == "muon" else 0)
    head = n_outputs * model.n_embd if config.task.kind == "classes" else 0
    if config.lora.rank is not None:  # gradients and base values of what changes; A, B, their gradients and moments
        adapted = [shape for name, shape, _ in table if name.endswith(config.lora.suffixes)]
        trained = head + sum(math.prod(shape) for shape in adapted)
        state = trained + head + 4 * config.lora.rank * sum(map(sum, adapted))
    elif config.task.trains == "head":
        trained, state = head, 2 * head
    if config.optim.ema is not None:
        state += parameters

    tokens, width, itemsize = train.sequences_per_forward * model.context_length, model.n_embd, matmul_dtype.itemsize
    layer = tokens * _saved_by_layer(config, itemsize)
    transient = tokens * (itemsize * model.mlp_hidden + 2 * _FP32_BYTES * width)  # gradients in the last layer
    saved = model.n_layer * layer
    if train.activation_checkpointing:  # the inputs of all layers, and one layer at a time
        saved, transient = model.n_layer * tokens * _FP32_BYTES * width, layer + transient
    saved += tokens * (_FP32_BYTES + itemsize) * width  # the last norm's input and output
    if itemsize < _FP32_BYTES:
        saved += itemsize * matrices  # weights rounded by autocast, which caches them
    activations = saved + max(transient, _loss_bytes(config, n_outputs, device, itemsize))
    if train.batch_size <= train.sequences_per_forward:
        activations = max(0, activations - _FP32_BYTES * trained)
    return {
        "weights": _FP32_BYTES * parameters,
        "gradients": _FP32_BYTES * trained,
        "optimizer": _FP32_BYTES * state,
        "activations": activations,
    }


def _saved_by_layer(config: Config, itemsize: int) -> int:
    """Bytes per token that a layer saves for its backward pass; `itemsize` is that of matrix products."""
    model = config.model
    width, kv = model.n_embd, model.kv_heads * model.head_dim
    saved = 2 * _FP32_BYTES * width + 2 * itemsize * width  # inputs and outputs of norms
    saved += itemsize * (width + 2 * kv)  # queries, keys and values
    if model.qk_norm and itemsize < _FP32_BYTES:
        saved += _FP32_BYTES * (width + kv)  # norms read them in fp32
    if model.qk_norm or model.position == "rope":
        saved += itemsize * (width + kv)  # normalised, rotated
    saved += itemsize * width + _FP32_BYTES * model.n_head  # the output of attention, and the sums of its softmax
    saved += itemsize * _SAVED_BY_MLP[model.mlp] * model.mlp_hidden
    return saved + (2 * width if model.dropout > 0 else 0)  # the masks, a byte each


def _loss_bytes(config: Config, n_outputs: int, device: torch.device, itemsize: int) -> int:
    """Peak bytes of the logits, their softmax and their gradient, and of the rounded weight of the head."""
    model = config.model
    per_text = 1 if config.task.kind == "classes" else model.context_length
    tokens = config.train.sequences_per_forward * per_text
    head = n_outputs * model.n_embd * (itemsize if itemsize < _FP32_BYTES else 0)
    capped = _FP32_BYTES if model.logit_softcap is not None else 0
    if tokens * n_outputs <= max_chunk_logits(device):
        return head + tokens * n_outputs * (3 * _FP32_BYTES + capped)
    chunk = min(tokens, rows_per_chunk(n_outputs, device)) * n_outputs * (2 * _FP32_BYTES + capped)
    # The gradients of the input and of the weight, besides those of a chunk.
    return head + chunk + _FP32_BYTES * (tokens * model.n_embd + n_outputs * model.n_embd)
