"""Examples as rows of one width, one to a row from the first position on.

Padding follows the example, where causal attention does not look, and is no target: the loss is that of each example
alone. Shapes: R rows, W width.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpt_cli.config import Config
from gpt_cli.corpus.examples import COMPLETION_END, PROMPT, Examples
from gpt_cli.errors import Notify, RequestError
from gpt_cli.runtime.async_copy import to_device_async
from gpt_cli.tokenizer import Tokenizer, token_sizes
from gpt_cli.training.evaluate import IGNORED


@dataclass(frozen=True, eq=False)
class ExampleRows:
    """The examples of a split that fit into the context, or are cut to it."""

    examples: Examples
    indices: npt.NDArray[np.int64]
    """(R,) index of each in the split."""
    widths: npt.NDArray[np.int64]
    """(R,) input tokens of each: all but the last."""
    counted: npt.NDArray[np.bool_]
    """(N,) whether a token of the split counts as a target."""

    @classmethod
    def of(
        cls, config: Config, examples: Examples, split: str, note: Notify, others: Iterable[Examples] = ()
    ) -> "ExampleRows":
        """The rows of a split; `note` reports examples that are too long. Raises RequestError where none is left, with
        the context that this split and `others`, those read beside it, need.
        """
        context, cut = config.model.context_length, config.data.too_long == "cut"
        counted = _counted(config, examples)
        widths = np.minimum(examples.lengths - 1, context)
        fits = examples.lengths - 1 <= context
        cumulative = np.concatenate([[0], np.cumsum(counted)])
        first = examples.starts[:-1]
        learns = cumulative[first + widths + 1] > cumulative[first]
        indices = np.flatnonzero(learns if cut else fits)
        if too_long := int(np.count_nonzero(~fits)):
            dropped = len(examples) - len(indices)
            left_out = "left out, since nothing that is learned would remain" if cut else "left out"
            actions = [f"{n:,} {verb}" for n, verb in ((dropped, left_out), (too_long - dropped, "cut")) if n]
            note(
                f"{too_long:,} of {len(examples):,} {split} examples are longer than model.context_length {context}:"
                f" {', '.join(actions)}"
            )
        if not len(indices):
            least = max(_least_context(config, each) for each in (examples, *others) if len(each))
            hint = _larger_context(config, least)
            if cut:
                action = f"cut to model.context_length {context}"
                raise RequestError(f"{action}, no {split} example keeps a token that is learned", hint=hint)
            shortest = int(examples.lengths.min()) - 1
            raise RequestError(
                f"no {split} example fits into model.context_length {context}: the shortest has {shortest:,} tokens",
                hint=hint + ("; or data.too_long=cut" if learns.any() else ""),
            )
        return cls(examples, indices, widths[indices], counted)

    def __len__(self) -> int:
        return len(self.indices)

    def tensors(self, rows: Sequence[int], width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """(R, W) inputs and targets of `rows`, padded with token 0 and IGNORED, on the device without a sync."""
        inputs = np.zeros((len(rows), width), dtype=np.int64)
        targets = np.full((len(rows), width), IGNORED, dtype=np.int64)
        for i, row in enumerate(rows):
            start, n = int(self.examples.starts[self.indices[row]]), int(self.widths[row])
            ids = self.examples.tokens[start : start + n + 1].astype(np.int64)
            inputs[i, :n] = ids[:-1]
            targets[i, :n] = np.where(self.counted[start + 1 : start + n + 1], ids[1:], IGNORED)
        return to_device_async(torch.from_numpy(inputs), device), to_device_async(torch.from_numpy(targets), device)

    def count_targets(self) -> npt.NDArray[np.int64]:
        """(R,) targets of each row that count."""
        cumulative = np.concatenate([[0], np.cumsum(self.counted)])
        first = self.examples.starts[self.indices]
        counts: npt.NDArray[np.int64] = cumulative[first + self.widths + 1] - cumulative[first]
        return counts

    def count_text(self, rows: Sequence[int], tokenizer: Tokenizer) -> tuple[int, int]:
        """The bytes and the characters of the targets of `rows`, without the ends of completions."""
        sizes = token_sizes(tokenizer)
        counts = np.zeros(len(sizes), dtype=np.int64)
        ends = 0
        for row in rows:
            start, n = int(self.examples.starts[self.indices[row]]), int(self.widths[row])
            targets = slice(start + 1, start + n + 1)
            counts += np.bincount(self.examples.tokens[targets][self.counted[targets]], minlength=len(sizes))
            ends += int(np.count_nonzero(self.examples.kinds[targets] == COMPLETION_END))
        n_bytes, characters = (counts @ sizes).tolist()
        end = self.examples.end_text
        return n_bytes - ends * len(end.encode()), characters - ends * len(end)


def _counted(config: Config, examples: Examples) -> npt.NDArray[np.bool_]:
    """(N,) whether a token counts as a target. The first of an example does not: it is not predicted."""
    counted = np.ones(len(examples.kinds), dtype=np.bool_) if config.data.loss_on == "all" else examples.kinds != PROMPT
    counted[examples.starts[:-1]] = False
    return counted


def _least_context(config: Config, examples: Examples) -> int:
    """The smallest context into which an example fits, or, where they are cut, one of its targets."""
    if config.data.too_long != "cut":
        return int(examples.lengths.min()) - 1
    targets = np.flatnonzero(_counted(config, examples))
    return int((targets - examples.starts[np.searchsorted(examples.starts, targets, side="right") - 1]).min())


def _larger_context(config: Config, least: int) -> str:
    """The hint at a context of at least `least` tokens, which a model that is trained further does not get."""
    if config.train.init_from is None:
        return f"give at least model.context_length={least}"
    return f"start from a model that was trained with model.context_length={least} or more"
