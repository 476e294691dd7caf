"""The exact loss of a model on a text: every token once, in fixed windows, without touching any randomness.

Shapes: N tokens of the text, W windows per forward pass, T context_length, V vocabulary.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gpt_cli.errors import UserError
from gpt_cli.model.chunked_loss import chunked_loss, wants_pieces
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.device import Runtime
from gpt_cli.runtime.memory import enough_memory, is_out_of_memory
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.training.native.network import NativeNetwork

# Numbers in the widest layer of a forward pass. On a CPU they stay where the caches reach: 8 times as many took
# half as long again, and more memory than training. Elsewhere there is more to keep busy.
_CPU_NUMBERS, _NUMBERS = 2**22, 2**27
_NATIVE_NUMBERS = 2**26  # compiled code takes as few at a time as its caches hold, but reads the weights at each call
_COUNTED = 2**20  # ids counted at once


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of a text."""

    loss: float  # nats per token
    tokens: int  # predicted
    characters: int  # in the predicted tokens
    bytes: int  # in the predicted tokens, as UTF-8

    @property
    def perplexity(self) -> float:
        """exp(loss): as uncertain as among so many equally likely tokens."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bpc(self) -> float:
        """Bits per character of the text."""
        return self.loss * self.tokens / math.log(2) / self.characters

    @property
    def bpb(self) -> float:
        """Bits per byte of the text as UTF-8: the figure by which any two models compare."""
        return self.loss * self.tokens / math.log(2) / self.bytes


@dataclass(frozen=True)
class TokenSizes:
    """How much text each id of a vocabulary stands for."""

    bytes: Tensor  # (V,)
    characters: Tensor  # (V,)

    @classmethod
    def of(cls, tokenizer: Tokenizer, device: torch.device) -> "TokenSizes":
        """Read off a tokenizer. Special tokens stand for no text; a character counts where its first byte is."""
        pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        sizes = np.array([(len(p), sum(byte & 0xC0 != 0x80 for byte in p)) for p in pieces], dtype=np.int64)
        both = torch.from_numpy(sizes).to(device)
        return cls(both[:, 0], both[:, 1])


@torch.no_grad()
def evaluate(
    model: GPT,
    tokens: Tensor,
    sizes: TokenSizes,
    runtime: Runtime,
    batch_size: int | None = None,
    native: NativeNetwork | None = None,
) -> Evaluation:
    """The mean loss over every token of the (N,) `tokens` but the first, each predicted once.

    The text is cut into non-overlapping windows of the model's context; a last, shorter window takes what is
    left; `native` is the same model in compiled code, if there is any. Raises UserError when there is nothing to
    predict.
    """
    if len(tokens) < 2:
        raise UserError(f"a text of {len(tokens)} tokens leaves nothing to predict")
    context = model.config.context_length
    if batch_size is None:
        numbers = _NATIVE_NUMBERS if native else _CPU_NUMBERS if tokens.device.type == "cpu" else _NUMBERS
        batch_size = max(1, numbers // (context * 16 * model.config.n_embd))
    was_training = model.training
    model.eval()
    sums: list[Tensor] = []  # read at the end, so that a device is not waited for in between
    n_full = (len(tokens) - 1) // context * context
    inputs, targets = tokens[:n_full].view(-1, context), tokens[1 : n_full + 1].view(-1, context)
    with enough_memory("evaluating a single window", "lower model.context_length; the newest checkpoint is good"):
        row = 0
        while row < len(inputs):
            rows = slice(row, row + batch_size)
            try:
                sums.append(_summed_loss(model, inputs[rows], targets[rows], runtime, native))  # (W, T) each
                row += batch_size
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or batch_size == 1:
                    raise
                batch_size //= 2  # the same windows, fewer at once
        if n_full < len(tokens) - 1:
            sums.append(_summed_loss(model, tokens[None, n_full:-1], tokens[None, n_full + 1 :], runtime, native))
    model.train(was_training)
    total = 0.0
    for summed in torch.stack(sums).tolist():  # one after the other: `sum` rounds differently from Python 3.12 on
        total += summed
    characters, n_bytes = _sizes_of(tokens[1:], sizes, counted=tokens.device.type == "cpu").tolist()
    return Evaluation(
        loss=total / (len(tokens) - 1),
        tokens=len(tokens) - 1,
        characters=max(1, characters),
        bytes=max(1, n_bytes),
    )


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """(B, T, V), (B, T) -> nats: the mean or the sum of -log p(target), computed in fp32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction=reduction)


def _sizes_of(tokens: Tensor, sizes: TokenSizes, *, counted: bool) -> Tensor:
    """(N,) tokens -> (2,) the characters and the bytes of all of them, on the device.

    To have the ids counted first is ten times as fast on a CPU, but a GPU would be waited for.
    """
    both = torch.stack([sizes.characters, sizes.bytes])  # (2, V)
    totals = torch.zeros(2, dtype=torch.int64, device=tokens.device)
    for piece in tokens.split(_COUNTED):  # a size for each token of the text would be far larger
        ids = piece.int()
        many = torch.bincount(ids, minlength=both.shape[1]) * both if counted else both[:, ids]
        totals += many.sum(1)
    return totals


def _summed_loss(model: GPT, inputs: Tensor, targets: Tensor, runtime: Runtime, native: NativeNetwork | None) -> Tensor:
    """(W, T), (W, T) -> the sum of -log p(target), a scalar on the device."""
    if native is not None:
        return torch.tensor(native.loss(inputs.long(), targets.long()), dtype=torch.float64)
    with runtime.autocast():
        if wants_pieces(model, inputs.numel()):
            return chunked_loss(model, inputs.long(), targets.long(), reduction="sum")
        logits = model(inputs.long())
    return cross_entropy(logits, targets.long(), reduction="sum")
