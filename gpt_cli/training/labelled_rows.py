"""Labelled texts as rows of one width, each from the first position on, and the labels of a config.

Shapes: R rows, W width.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpt_cli.config import Config
from gpt_cli.config.keys import replace_keys
from gpt_cli.corpus.labelled import LabelledTexts, sort_labels
from gpt_cli.corpus.prepare import Corpus
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.model.sequence_classifier import PADDING
from gpt_cli.runtime.async_copy import to_device_async
from gpt_cli.terminal.escape import escape_control_chars


def with_labels(config: Config, corpus: Corpus) -> Config:
    """`config` with labels and class weights from the data where it has none; unchanged if it learns no classes.

    Raises UserError, with its place, for a label that is not in `task.labels`, and RequestError for a label of
    `task.labels` that no training text has.
    """
    if config.task.kind != "classes":
        return config
    counts = Counter(text.label for text in corpus.labelled["train"].source)
    labels = sort_labels(counts) if config.task.labels is None else config.task.labels
    for texts in corpus.labelled.values():
        for text in texts.source:
            if text.label not in labels:
                escaped = escape_control_chars(text.label[:50])
                hint = "task.labels=null takes the labels from the texts"
                raise UserError(f"the label '{escaped}' is none of task.labels", where=text.where, hint=hint)
    if missing := [label for label in labels if label not in counts]:
        raise RequestError(
            f"task.labels: no text that trains has the label '{escape_control_chars(missing[0])}'",
            hint="leave it out of task.labels",
        )
    weights = config.task.class_weights
    if weights == "balanced":
        weights = [counts.total() / len(labels) / counts[label] for label in labels]
    return replace_keys(config, {"task.labels": labels, "task.class_weights": weights})


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """The texts of a split that fit into the context, or are cut to it."""

    texts: LabelledTexts
    indices: npt.NDArray[np.int64]
    """(R,) index of each in the split."""
    widths: npt.NDArray[np.int64]
    """(R,) tokens that are read of each."""
    classes: npt.NDArray[np.int64]
    """(R,) index of its label in `task.labels`."""

    @classmethod
    def of(cls, config: Config, texts: LabelledTexts, split: str, note: Notify) -> "LabelledRows":
        """The rows of a split; `note` reports texts that are too long.

        Raises RequestError where none is left, and where a label has none left to train on.
        """
        context, labels = config.model.context_length, config.task.labels
        assert labels is not None
        fits = texts.lengths <= context
        cut = config.data.too_long == "cut"
        if too_long := int(np.count_nonzero(~fits)):
            action = f"only their first {context:,} tokens are read" if cut else "they are left out"
            note(
                f"{too_long:,} of {len(texts):,} {split} texts are longer than model.context_length {context}: {action}"
            )
        indices = np.arange(len(texts)) if cut else np.flatnonzero(fits)
        if not len(indices):
            raise RequestError(
                f"no {split} text fits into model.context_length {context}", hint="data.too_long=cut reads their begin"
            )
        left = {texts.source[row].label for row in indices.tolist()}
        gone = next((text for text in texts.source if text.label not in left), None)
        if gone is not None and split == "training":
            raise RequestError(
                f"no training text with the label '{escape_control_chars(gone.label[:50])}' fits into"
                f" model.context_length {context}",
                where=gone.where,
                hint="data.too_long=cut reads the beginning of each",
            )
        index = {label: number for number, label in enumerate(labels)}
        classes = np.array([index[texts.source[row].label] for row in indices.tolist()], dtype=np.int64)
        return cls(texts, indices, np.minimum(texts.lengths, context)[indices], classes)

    def __len__(self) -> int:
        return len(self.indices)

    def tensors(self, rows: Sequence[int], width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """(R, W) tokens of `rows`, padded with PADDING, and (R,) classes, on the device without a sync."""
        inputs, targets = pad_rows([self.ids(row) for row in rows], width), torch.from_numpy(self.classes[list(rows)])
        return to_device_async(inputs, device), to_device_async(targets, device)

    def ids(self, row: int) -> npt.NDArray[np.unsignedinteger]:
        """(W,) tokens of one row."""
        start = int(self.texts.starts[self.indices[row]])
        return self.texts.tokens[start : start + int(self.widths[row])]


def pad_rows(rows: Sequence[npt.NDArray[np.unsignedinteger]], width: int) -> Tensor:
    """(R, W) ids, each row followed by PADDING."""
    padded = np.full((len(rows), width), PADDING, dtype=np.int64)
    for number, ids in enumerate(rows):
        padded[number, : len(ids)] = ids
    return torch.from_numpy(padded)
