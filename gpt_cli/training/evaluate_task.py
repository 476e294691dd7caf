"""The validation metrics of each task."""

from typing import TYPE_CHECKING, cast

from gpt_cli.distributed.world import ALONE, World
from gpt_cli.model.gpt import GPT
from gpt_cli.model.sequence_classifier import SequenceClassifier
from gpt_cli.training.class_evaluation import ClassEvalMetrics, evaluate_classes
from gpt_cli.training.engine import Engine
from gpt_cli.training.evaluate import EvalDataset, EvalMetrics, evaluate
from gpt_cli.training.labelled_rows import LabelledRows

if TYPE_CHECKING:
    from gpt_cli.training.torch_engine import TorchEngine


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
