"""The loss of each task, and its validation metrics.

Shapes: B sequences or texts, T tokens each, K classes.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from torch import Tensor
from torch.nn import functional as F

from gpt_cli.distributed.world import ALONE, World
from gpt_cli.model.chunked_loss import chunked_loss, needs_chunking
from gpt_cli.model.gpt import GPT
from gpt_cli.model.packed_rows import unpack
from gpt_cli.model.sequence_classifier import SequenceClassifier
from gpt_cli.training.class_evaluation import ClassEvalMetrics, evaluate_classes
from gpt_cli.training.engine import Engine
from gpt_cli.training.evaluate import EvalDataset, EvalMetrics, cross_entropy, evaluate
from gpt_cli.training.labelled_rows import LabelledRows

if TYPE_CHECKING:
    from gpt_cli.training.torch_engine import TorchEngine


def loss_function(model: GPT, *, packed: bool = False) -> Callable[..., Tensor]:
    """The function (inputs, targets, reduction) -> loss of `model` in nats."""
    if isinstance(model, SequenceClassifier):
        return partial(class_loss, model)
    return partial(packed_loss if packed else token_loss, model)


def token_loss(model: GPT, inputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """(B, T), (B, T) -> -log p(target) in nats: the mean or the sum over targets that are not IGNORED."""
    if needs_chunking(model, inputs.numel()):
        return chunked_loss(model, inputs, targets, reduction)
    return cross_entropy(model(inputs), targets, reduction)


def packed_loss(model: GPT, inputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """`token_loss` of rows of several sequences, the first token of each as its complement (`model/packed_rows.py`)."""
    tokens, rows = unpack(inputs)
    if needs_chunking(model, tokens.numel()):
        return chunked_loss(model, tokens, targets, reduction, rows)
    return cross_entropy(model(tokens, rows), targets, reduction)


def class_loss(model: SequenceClassifier, inputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """(B, T), (B,) -> -log p(class) in nats, times the weight of the class in training: the mean or the sum."""
    losses = F.cross_entropy(model(inputs).float(), targets, reduction="none")
    if model.training and model.class_weights is not None:
        losses = losses * model.class_weights[targets]
    return losses.mean() if reduction == "mean" else losses.sum()


def evaluate_task(
    model: GPT,
    engine: Engine,
    dataset: EvalDataset | LabelledRows,
    batch_size: int | None = None,
    world: World = ALONE,
) -> EvalMetrics | ClassEvalMetrics:
    """The loss of `model` on `dataset`, and for a classifier its accuracy and F1."""
    if isinstance(dataset, LabelledRows):
        assert isinstance(model, SequenceClassifier)
        runtime = cast("TorchEngine", engine).runtime  # the only engine for classes
        return evaluate_classes(model, dataset, runtime, batch_size, world)
    return evaluate(model, engine, dataset, batch_size, world)
