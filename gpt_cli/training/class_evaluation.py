"""The figures of a classifier on labelled texts: loss, accuracy, macro F1 and the confusion matrix.

Shapes: E texts, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpt_cli.distributed.world import ALONE, World
from gpt_cli.model.sequence_classifier import SequenceClassifier
from gpt_cli.runtime.device import Runtime
from gpt_cli.runtime.oom import is_out_of_memory, oom_as_user_error
from gpt_cli.training.evaluate import max_batch_size
from gpt_cli.training.labelled_rows import LabelledRows, pad_rows


@dataclass(frozen=True, eq=False)
class ClassEvalMetrics:
    """The figures of a model on labelled texts."""

    log_probs: npt.NDArray[np.float64]
    """(E, K) natural logarithms."""
    classes: npt.NDArray[np.int64]
    """(E,) the true classes."""

    @property
    def loss(self) -> float:
        """Nats per text, whatever the class weights."""
        return float(-self.log_probs[np.arange(len(self.classes)), self.classes].mean())

    @property
    def chosen(self) -> npt.NDArray[np.int64]:
        """(E,) the likeliest class of each text."""
        likeliest: npt.NDArray[np.int64] = np.argmax(self.log_probs, axis=1)
        return likeliest

    @cached_property
    def confusion(self) -> npt.NDArray[np.int64]:
        """(K, K) counts; rows: the true class, columns: the chosen one."""
        return confusion_matrix(self.classes, self.chosen, self.log_probs.shape[1])

    def metrics(self) -> dict[str, Any]:
        """The figures of an evaluation by their names in metrics.jsonl."""
        accuracy, f1 = accuracy_of(self.confusion), macro_f1(self.confusion)
        return {"val_loss": self.loss, "accuracy": accuracy, "macro_f1": f1}

    def describe(self) -> str:
        """The figures in a line."""
        accuracy, f1 = accuracy_of(self.confusion), macro_f1(self.confusion)
        return f"val loss {self.loss:.4f}  accuracy {accuracy:.4f}  macro F1 {f1:.4f}"


def confusion_matrix(
    classes: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64], n_classes: int
) -> npt.NDArray[np.int64]:
    """(E,), (E,) -> (K, K) counts; rows: the true class, columns: the chosen one."""
    return np.bincount(classes * n_classes + chosen, minlength=n_classes**2).reshape(n_classes, n_classes)


def accuracy_of(confusion: npt.NDArray[np.int64]) -> float:
    """The share of counts on the diagonal."""
    return float(np.trace(confusion) / confusion.sum())


def macro_f1(confusion: npt.NDArray[np.int64]) -> float:
    """The unweighted mean of F1 over the classes that occur, as true or as chosen class."""
    true_positives = np.diag(confusion)
    occurrences = confusion.sum(0) + confusion.sum(1)
    return float((2 * true_positives[occurrences > 0] / occurrences[occurrences > 0]).mean())


def evaluate_classes(
    model: SequenceClassifier,
    rows: LabelledRows,
    runtime: Runtime,
    batch_size: int | None = None,
    world: World = ALONE,
) -> ClassEvalMetrics:
    """The figures of `model` on `rows`; the processes of `world` take turns with batches."""
    ids = [rows.ids(row) for row in range(len(rows))]
    log_probs = class_log_probs(model, ids, runtime, batch_size, world)
    return ClassEvalMetrics(log_probs, rows.classes)


@torch.no_grad()
def class_log_probs(
    model: SequenceClassifier,
    rows: Sequence[npt.NDArray[np.unsignedinteger]],
    runtime: Runtime,
    batch_size: int | None = None,
    world: World = ALONE,
) -> npt.NDArray[np.float64]:
    """(E, K) log-probabilities of the classes; `rows` are texts as ids, none empty, batched by length.

    Raises UserError if memory is too small for a single text.
    """
    if batch_size is None:
        batch_size = max_batch_size(model.config, runtime.device)
    was_training = model.training
    model.eval()
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    groups = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    log_probs = torch.zeros(len(rows), model.head.out_features, dtype=torch.float64)
    with oom_as_user_error("classifying a single text", "lower model.context_length; the newest checkpoint is good"):
        for group in groups[world.rank :: world.size]:
            first = 0
            while first < len(group):
                indices = group[first : first + batch_size]
                try:
                    log_probs[indices] = _log_probs(model, [rows[row] for row in indices], runtime)
                    first += batch_size
                except (MemoryError, RuntimeError) as error:
                    if not is_out_of_memory(error) or batch_size == 1:
                        raise
                    batch_size //= 2  # the same texts, fewer at once
    model.train(was_training)
    return world.all_reduce_disjoint(log_probs.flatten()).view_as(log_probs).numpy()


def _log_probs(model: SequenceClassifier, rows: Sequence[npt.NDArray[np.unsignedinteger]], runtime: Runtime) -> Tensor:
    inputs = pad_rows(rows, max(map(len, rows))).to(runtime.device)
    with runtime.autocast():
        logits: Tensor = model(inputs)
    return logits.float().log_softmax(dim=-1).double().cpu()
