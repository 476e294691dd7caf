"""The exact loss of a model on a text: every token once, in fixed windows, without touching any randomness.

Shapes: N tokens of the text, W windows per forward pass, T context_length, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from gpt_cli.config import ModelConfig
from gpt_cli.corpus.tokens import MappedTokens
from gpt_cli.cpu.train.native_engine import NativeEngine
from gpt_cli.distributed.world import ALONE, World
from gpt_cli.errors import UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.oom import is_out_of_memory, oom_as_user_error
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import Tokenizer, token_sizes
from gpt_cli.training.device_tokens import DeviceTokens
from gpt_cli.training.engine import Engine

# Elements of the widest activation of a forward pass, at most. On a CPU they stay where the caches reach: 8 times as
# many took half as long again, and more memory than training. Elsewhere there is more to keep busy.
_MAX_ACTIVATION_ELEMENTS_CPU, _MAX_ACTIVATION_ELEMENTS_GPU = 2**22, 2**27
_MAX_ACTIVATION_ELEMENTS_NATIVE = 2**26  # the C engine splits them further, but reads the weights at each call
_COUNTED = 2**20  # ids counted at once, at 8 bytes each
LoadBatch = Callable[[], tuple[Tensor, Tensor]]
"""() -> (W, T) inputs and targets on the device."""
IGNORED = -100
"""A target that is left out of the loss; the default of torch."""


@dataclass(frozen=True)
class EvalMetrics:
    """The loss of a model on an `EvalDataset`, and per character and byte."""

    loss: float  # nats per token
    tokens: int  # predicted
    of_tokens: int  # without the cap of eval.max_tokens
    characters: int  # in the predicted tokens
    bytes: int  # in the predicted tokens, as UTF-8

    @property
    def perplexity(self) -> float:
        """exp(loss): as uncertain as a choice among this many equally likely tokens."""
        return math.exp(min(self.loss, 700.0))

    @property
    def extent(self) -> str:
        """The share of the text that was evaluated, as text to follow a loss; empty for all of it."""
        return "" if self.tokens == self.of_tokens else f" (first {self.tokens:,} of {self.of_tokens:,} tokens)"

    def metrics(self) -> dict[str, float]:
        """The figures of an evaluation by their names in metrics.jsonl."""
        capped = {"val_tokens": self.tokens} if self.extent else {}
        return {"val_loss": self.loss, "bpc": self.bpc, "bpb": self.bpb, **capped}

    def describe(self) -> str:
        """The figures in a line."""
        return f"val loss {self.loss:.4f}{self.extent}  bpc {self.bpc:.3f}  bpb {self.bpb:.3f}"

    @property
    def bpc(self) -> float:
        """Bits per character of the text."""
        return self.loss * self.tokens / math.log(2) / self.characters

    @property
    def bpb(self) -> float:
        """Bits per byte of the text as UTF-8: the figure by which any two models compare."""
        return self.loss * self.tokens / math.log(2) / self.bytes


@dataclass(frozen=True)
class EvaluationText:
    """A text to evaluate on, with the characters and bytes of its tokens."""

    tokens: DeviceTokens  # all but the first are predicted
    characters: int  # in the predicted tokens
    bytes: int
    of_tokens: int  # predicted tokens, had they not been capped

    @classmethod
    def of(
        cls,
        ids: npt.NDArray[np.unsignedinteger] | MappedTokens,
        tokenizer: Tokenizer,
        device: torch.device,
        max_tokens: int | None = None,
    ) -> "EvaluationText":
        """The first `max_tokens` predicted tokens of (N,) `ids`; None: all of them.

        Special tokens stand for no text; a character counts where its first byte is. Raises UserError where there is
        nothing to predict.
        """
        if len(ids) < 2:
            raise UserError(f"a text of {plural(len(ids), 'token')} leaves nothing to predict")
        capped = ids if max_tokens is None else ids[: max_tokens + 1]
        sizes = token_sizes(tokenizer)
        counts = np.zeros(len(sizes), dtype=np.int64)
        for start in range(1, len(capped), _COUNTED):
            counts += np.bincount(capped[start : start + _COUNTED], minlength=len(sizes))
        n_bytes, characters = counts @ sizes
        return cls(DeviceTokens(capped, device), max(1, int(characters)), max(1, int(n_bytes)), len(ids) - 1)

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    @property
    def predicted(self) -> int:
        """Tokens that are predicted."""
        return len(self.tokens) - 1

    def batches(self, context: int, batch_size: int) -> list[LoadBatch]:
        """The text in windows of `context` tokens, `batch_size` at a time; the last window may be shorter."""
        n = self.predicted
        n_full = n // context * context
        borders = [*range(0, n_full, batch_size * context), *([n_full, n] if n_full < n else [n_full])]
        return [
            partial(self._load, position, end, context if position < n_full else end - position)
            for position, end in pairwise(borders)
        ]

    def _load(self, position: int, end: int, width: int) -> tuple[Tensor, Tensor]:
        ids = self.tokens.span(position, end + 1)
        return ids[:-1].view(-1, width), ids[1:].view(-1, width)


class EvalDataset(Protocol):
    """A text or examples that a loss is measured on."""

    @property
    def device(self) -> torch.device: ...
    @property
    def predicted(self) -> int: ...
    @property
    def of_tokens(self) -> int: ...
    @property
    def characters(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def batches(self, context: int, batch_size: int) -> list[LoadBatch]: ...


@torch.no_grad()
def evaluate(
    model: GPT,
    engine: Engine,
    dataset: EvalDataset,
    batch_size: int | None = None,
    world: World = ALONE,
) -> EvalMetrics:
    """The mean loss over the targets of `dataset`, each predicted once by `engine`, which computes `model`.

    A text is cut into non-overlapping windows of the model's context; all its tokens but the first are targets. The
    processes of `world` take turns with the batches, whose losses are added in the order of the batches.
    """
    context, n = model.config.context_length, dataset.predicted
    if batch_size is None:
        batch_size = max_batch_size(model.config, dataset.device, native=isinstance(engine, NativeEngine))
    was_training, reshard = model.training, getattr(model, "reshard", None)  # a method that `fully_shard` adds
    lockstep = reshard is not None
    model.eval()
    sums: list[tuple[int, Tensor]] = []  # read at the end: one sync
    batches = dataset.batches(context, batch_size)
    with oom_as_user_error("evaluating a single window", "lower model.context_length; the newest checkpoint is good"):
        for index, load in batches_of_rank(batches, world, lockstep=lockstep):
            inputs, targets = load()  # (W, T) each
            row = 0
            while row < len(inputs):
                rows = slice(row, row + batch_size)
                try:
                    sums.append((index, engine.summed_loss(inputs[rows], targets[rows])))
                    row += batch_size
                except (MemoryError, RuntimeError) as error:
                    if not is_out_of_memory(error) or batch_size == 1 or lockstep:
                        raise
                    batch_size //= 2  # the same windows, fewer at once
    model.train(was_training)
    if reshard is not None:
        reshard()  # the weights are about to change
    losses = [0.0] * len(batches)
    for (index, _), loss in zip(sums, torch.stack([loss for _, loss in sums]).tolist() if sums else [], strict=True):
        if index < len(batches):
            losses[index] += loss
    total_loss = 0.0
    if world.size > 1:
        losses = world.all_reduce_disjoint(torch.tensor(losses, dtype=torch.float64)).tolist()
    for loss in losses:  # one after the other: `sum` rounds differently from Python 3.12 on
        total_loss += loss
    return EvalMetrics(total_loss / n, n, dataset.of_tokens, dataset.characters, dataset.bytes)


def max_batch_size(config: ModelConfig, device: torch.device, *, native: bool = False) -> int:
    """The most contexts of a forward pass on `device`; `native`: by the C engine."""
    on_device = _MAX_ACTIVATION_ELEMENTS_CPU if device.type == "cpu" else _MAX_ACTIVATION_ELEMENTS_GPU
    limit = _MAX_ACTIVATION_ELEMENTS_NATIVE if native else on_device
    return max(1, limit // (config.context_length * 16 * config.n_embd))


def batches_of_rank(batches: Sequence[LoadBatch], world: World, *, lockstep: bool) -> list[tuple[int, LoadBatch]]:
    """(number, batch) of each batch that this process evaluates.

    Under `lockstep` (sharded weights: all processes compute together) every process gets equally many; losses of those
    with a number past the end of `batches` are to be ignored.
    """
    missing = -len(batches) % world.size if lockstep else 0
    return list(enumerate([*batches, *[batches[-1]] * missing]))[world.rank :: world.size]


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """(B, T, V), (B, T) -> nats: mean or sum of -log p(target) over targets that are not IGNORED, computed in fp32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction=reduction, ignore_index=IGNORED)
