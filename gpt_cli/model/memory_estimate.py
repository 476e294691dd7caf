"""An estimate of the memory that training takes by torch, before any of it is allocated.

Shapes: N tokens per forward pass, C n_embd, F mlp_hidden, V vocabulary.
"""

import torch

from gpt_cli.config import Config
from gpt_cli.model.chunked_loss import max_chunk_logits, rows_per_chunk
from gpt_cli.model.sizing import is_hidden_matrix, parameter_table

_EXACT = 4  # bytes of fp32: weights, gradients, the residual stream, the loss
# Numbers per unit of the hidden width that the backward pass of an activation needs: what goes in and what comes out
# (relu's are one; swiglu keeps both halves, the activated gate and the product).
_KEPT_BY_MLP = {"relu": 1, "gelu": 2, "relu2": 2, "swiglu": 4}


def estimate_memory(config: Config, vocab_size: int, device: torch.device, matmul_dtype: torch.dtype) -> dict[str, int]:
    """Bytes by what they are for: weights, gradients, optimizer, activations; their sum is the peak of a step.

    Of eager steps with fused kernels of attention and norms, as on a GPU; compiled ones take less, and so does the C
    engine. Where a step is one forward pass, gradients appear as activations go: what both use counts as gradients.
    """
    model, train = config.model, config.train
    table = parameter_table(model, vocab_size)
    n_outputs = vocab_size if config.task.kind == "language" else len(config.task.labels or "ab")
    parameters = sum(n for _, _, n in table) - (vocab_size - n_outputs) * model.n_embd
    matrices = sum(n for name, shape, n in table if is_hidden_matrix(name, shape))
    learned, state = parameters, 2 * parameters - (matrices if config.optim.name == "muon" else 0)
    if config.lora.rank is not None:
        learned = state = matrices  # their gradients, and what they were before
    if config.optim.ema is not None:
        state += parameters

    tokens, width, number = train.sequences_per_forward * model.context_length, model.n_embd, matmul_dtype.itemsize
    layer = tokens * _kept_by_layer(config, number)
    made = tokens * (number * model.mlp_hidden + 2 * _EXACT * width)  # gradients in the last layer, while it is whole
    kept = model.n_layer * layer
    if train.activation_checkpointing:  # the inputs of all layers, and one layer at a time
        kept, made = model.n_layer * tokens * _EXACT * width, layer + made
    kept += tokens * (_EXACT + number) * width  # the last norm's input and output
    if number < _EXACT:
        kept += number * matrices  # rounded by autocast, which keeps them
    activations = kept + max(made, _of_loss(config, n_outputs, device, number))
    if train.batch_size <= train.sequences_per_forward:
        activations = max(0, activations - _EXACT * learned)
    return {
        "weights": _EXACT * parameters,
        "gradients": _EXACT * learned,
        "optimizer": _EXACT * state,
        "activations": activations,
    }


def _kept_by_layer(config: Config, number: int) -> int:
    """Bytes that a layer keeps of a token for its backward pass; `number`: of one in a matrix product."""
    model = config.model
    width, kv = model.n_embd, model.kv_heads * model.head_dim
    kept = 2 * _EXACT * width + 2 * number * width  # what norms read and what they write
    kept += number * (width + 2 * kv)  # queries, keys and values, as they were multiplied
    if model.qk_norm and number < _EXACT:
        kept += _EXACT * (width + kv)  # norms read them in fp32
    if model.qk_norm or model.position == "rope":
        kept += number * (width + kv)  # normalised, rotated
    kept += number * width + _EXACT * model.n_head  # what attention gives, and its softmax's sums
    kept += number * _KEPT_BY_MLP[model.mlp] * model.mlp_hidden
    return kept + (2 * width if model.dropout > 0 else 0)  # a byte for what is left in


def _of_loss(config: Config, n_outputs: int, device: torch.device, number: int) -> int:
    """Bytes of the logits, their softmax and their gradient at their most, and of the rounded weight of the head."""
    model = config.model
    per_text = 1 if config.task.kind == "classes" else model.context_length
    tokens = config.train.sequences_per_forward * per_text
    head = n_outputs * model.n_embd * (number if number < _EXACT else 0)
    capped = _EXACT if model.logit_softcap is not None else 0
    if tokens * n_outputs <= max_chunk_logits(device):
        return head + tokens * n_outputs * (3 * _EXACT + capped)
    piece = min(tokens, rows_per_chunk(n_outputs, device)) * n_outputs * (2 * _EXACT + capped)
    # The gradients of what goes in and of the weight, one of a piece besides.
    return head + piece + _EXACT * (tokens * model.n_embd + n_outputs * model.n_embd)
