"""Examples as rows of one width: each begins at the first position and sees nothing but itself, or several in a row.

What fills up a row follows its example, where causal attention does not look, and is no target: the loss is that of
each example alone. Shapes: R rows, W width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpt_cli.config import Config
from gpt_cli.corpus.examples.tokens import COMPLETION_END, PROMPT, Examples
from gpt_cli.errors import Notify, RequestError
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.training.evaluate import IGNORED, token_sizes


@dataclass(frozen=True, eq=False)
class ExampleRows:
    """The examples of a split that fit into the context, or of which a part does."""

    examples: Examples
    kept: npt.NDArray[np.int64]
    """(R,) index of each in the split."""
    widths: npt.NDArray[np.int64]
    """(R,) tokens that are read of each: all but the last."""
    counted: npt.NDArray[np.bool_]
    """(N,) whether a token of the split counts as a target."""

    @classmethod
    def of(cls, config: Config, examples: Examples, split: str, note: Notify) -> "ExampleRows":
        """The rows of a split; `note` is told of examples that are too long. Raises RequestError where none is left."""
        context, cut = config.model.context_length, config.data.too_long == "cut"
        counted = examples.kinds != PROMPT
        if config.data.loss_on == "all":
            counted = np.ones_like(counted)
        counted[examples.starts[:-1]] = False  # nothing comes before the first token
        widths = np.minimum(examples.lengths - 1, context)
        fits = examples.lengths - 1 <= context
        so_far = np.concatenate([[0], np.cumsum(counted)])
        first = examples.starts[:-1]
        learns = so_far[first + widths + 1] > so_far[first]
        kept = np.flatnonzero(learns if cut else fits)
        if too_long := int(np.count_nonzero(~fits)):
            dropped = len(examples) - len(kept)
            done = [f"{n:,} {verb}" for n, verb in ((dropped, "left out"), (too_long - dropped, "cut")) if n]
            note(
                f"{too_long:,} of {len(examples):,} {split} examples are longer than model.context_length {context}:"
                f" {', '.join(done)}"
            )
        if not len(kept):
            raise RequestError(
                f"no {split} example fits into model.context_length {context}: the shortest has"
                f" {int(examples.lengths.min()) - 1:,} tokens",
                hint="give a larger model.context_length",
            )
        return cls(examples, kept, widths[kept], counted)

    def __len__(self) -> int:
        return len(self.kept)

    def tensors(self, rows: Sequence[int], width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """(R, W) inputs and targets of `rows`, filled up with token 0 and IGNORED, on the device without waiting."""
        return self._placed(rows, [(i, 0) for i in range(len(rows))], (len(rows), width), device)

    def packed(
        self, rows: Sequence[int], places: Sequence[tuple[int, int]], shape: tuple[int, int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """The same, each at its place: a row and a column. The first token of each is there as its complement, by which
        `model/packed_rows.py` tells one from the other.
        """
        return self._placed(rows, places, shape, device, marks=True)

    def _placed(
        self,
        rows: Sequence[int],
        places: Sequence[tuple[int, int]],
        shape: tuple[int, int],
        device: torch.device,
        marks: bool = False,
    ) -> tuple[Tensor, Tensor]:
        inputs = np.zeros(shape, dtype=np.int64)
        targets = np.full(shape, IGNORED, dtype=np.int64)
        for row, (i, at) in zip(rows, places, strict=True):
            start, n = int(self.examples.starts[self.kept[row]]), int(self.widths[row])
            ids = self.examples.tokens[start : start + n + 1].astype(np.int64)
            inputs[i, at : at + n] = ids[:-1]
            targets[i, at : at + n] = np.where(self.counted[start + 1 : start + n + 1], ids[1:], IGNORED)
            if marks:
                inputs[i, at] = ~inputs[i, at]
        pair = torch.from_numpy(inputs), torch.from_numpy(targets)
        if device.type == "cuda":
            pair = pair[0].pin_memory(), pair[1].pin_memory()  # or the copy would wait for the step before
        return pair[0].to(device, non_blocking=True), pair[1].to(device, non_blocking=True)

    def count_targets(self) -> npt.NDArray[np.int64]:
        """(R,) targets of each row that count."""
        so_far = np.concatenate([[0], np.cumsum(self.counted)])
        first = self.examples.starts[self.kept]
        found: npt.NDArray[np.int64] = so_far[first + self.widths + 1] - so_far[first]
        return found

    def count_text(self, rows: Sequence[int], tokenizer: Tokenizer) -> tuple[int, int]:
        """The bytes and the characters of the targets of `rows`, without the ends of completions."""
        sizes = token_sizes(tokenizer)
        counts = np.zeros(len(sizes), dtype=np.int64)
        ends = 0
        for row in rows:
            start, n = int(self.examples.starts[self.kept[row]]), int(self.widths[row])
            targets = slice(start + 1, start + n + 1)
            counts += np.bincount(self.examples.tokens[targets][self.counted[targets]], minlength=len(sizes))
            ends += int(np.count_nonzero(self.examples.kinds[targets] == COMPLETION_END))
        n_bytes, characters = (counts @ sizes).tolist()
        end = self.examples.end_text
        return n_bytes - ends * len(end.encode()), characters - ends * len(end)


def first_fit(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """The row and the column of each of several widths in rows of `room`, the widest first where it fits first.

    At most 11/9 times as many rows as are needed, and one more (Johnson, 1973). None may be wider than a row.
    """
    filled: list[int] = []
    places = [(0, 0)] * len(widths)
    for index in sorted(range(len(widths)), key=lambda i: -widths[i]):
        width = widths[index]
        row = next((i for i, size in enumerate(filled) if size + width <= room), len(filled))
        if row == len(filled):
            filled.append(0)
        places[index] = row, filled[row]
        filled[row] += width
    return places
