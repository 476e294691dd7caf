"""Metrics of a trained classifier, with two baselines: the majority class and a bag of words.

Shapes: E texts, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.labelled import LabelledTexts
from gpt_cli.corpus.prepare import Corpus
from gpt_cli.errors import Notify
from gpt_cli.evaluation.bag_of_words import BagOfWords
from gpt_cli.evaluation.given_examples import check_labels, read_given_labelled
from gpt_cli.evaluation.text_classifier import TextClassifier
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.run_corpus import load_run_corpus
from gpt_cli.runtime.device import restoring_settings
from gpt_cli.terminal.progress import stage_progress, working
from gpt_cli.training.class_evaluation import (
    ClassEvalMetrics,
    accuracy_of,
    confusion_matrix,
    evaluate_classes,
    macro_f1,
)
from gpt_cli.training.labelled_rows import LabelledRows

BINS = 15
"""Bins of the expected calibration error, of equal width (Guo et al., 2017)."""


@dataclass(frozen=True, eq=False)
class ClassReport:
    """The metrics of one checkpoint on labelled texts."""

    checkpoint: str
    step: int
    text: str
    labels: list[str]
    evaluation: ClassEvalMetrics
    majority: npt.NDArray[np.int64]
    """(K, K) confusion of always choosing the most frequent label of the training texts."""
    bag_of_words: npt.NDArray[np.int64] | None
    """(K, K) confusion of `BagOfWords`; None without the training texts."""

    def figures(self) -> dict[str, Any]:
        """The scalar metrics by name."""
        e = self.evaluation
        figures = {
            "checkpoint": self.checkpoint,
            "step": self.step,
            "text": self.text,
            "texts": len(e.classes),
            "loss": e.loss,
            "accuracy": accuracy_of(e.confusion),
            "macro_f1": macro_f1(e.confusion),
            "calibration_error": calibration_error(e),
            "majority_accuracy": accuracy_of(self.majority),
            "majority_macro_f1": macro_f1(self.majority),
        }
        if self.bag_of_words is not None:
            figures["bag_of_words_accuracy"] = accuracy_of(self.bag_of_words)
            figures["bag_of_words_macro_f1"] = macro_f1(self.bag_of_words)
        return figures

    def to_json(self) -> dict[str, Any]:
        """The metrics with the labels and the confusion matrix; rows are true labels."""
        return {**self.figures(), "labels": self.labels, "confusion": self.evaluation.confusion.tolist()}


def calibration_error(evaluation: ClassEvalMetrics) -> float:
    """Expected calibration error: the mean of |accuracy - confidence| over BINS bins of confidence, weighted by texts.

    Confidence is the probability of the chosen class.
    """
    confidence = np.exp(evaluation.log_probs.max(axis=1))
    correct = evaluation.chosen == evaluation.classes
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = [abs(correct[bins == b].sum() - confidence[bins == b].sum()) for b in range(BINS)]
    return float(sum(gaps) / len(correct))


@restoring_settings()
def evaluate_classifier(
    saved: Checkpoint,
    classifier: TextClassifier,
    source: str | None,
    split: Literal["val", "test"],
    note: Notify,
    data: DataConfig | None = None,
    *,
    skip_unknown: bool = False,
) -> ClassReport:
    """Evaluate `classifier`, of the checkpoint `saved`, on a split of its own texts or on labelled texts in `source`.

    `data`: settings to read `source` with; None: those of the run. Raises as reading does, UserError if the split
    cannot be reproduced or a label is unknown, and RequestError if there is no test split.
    """
    train: LabelledTexts | None = None
    if source is None:
        with stage_progress() as progress:
            corpus: Corpus = load_run_corpus(saved, note=note, progress=progress, with_test=split == "test")
        train, texts = corpus.labelled["train"], corpus.labelled[split]
        check_labels(texts.source, classifier.labels)
    else:
        texts = read_given_labelled(
            source,
            data or saved.config.data,
            saved.tokenizer,
            classifier.labels,
            skip_unknown=skip_unknown,
            note=note,
        )
    name = "given" if source is not None else {"val": "validation", "test": "test"}[split]
    rows = LabelledRows.of(saved.config, texts, name, note)
    classifier.runtime.apply()
    with working("evaluating"):
        evaluation = evaluate_classes(classifier.model, rows, classifier.runtime)
    contents = [texts.source[row].text for row in rows.indices.tolist()]
    majority, bag = _baselines(classifier.labels, train, rows.classes, contents)
    text = f"{name} split" if source is None else source
    return ClassReport(str(saved.path), saved.step, text, classifier.labels, evaluation, majority, bag)


def _baselines(
    labels: list[str], train: LabelledTexts | None, classes: npt.NDArray[np.int64], texts: Sequence[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """The (K, K) confusions of the most frequent label (in training, else in `classes`) and of the bag of words."""
    train_classes = classes if train is None else np.array([labels.index(text.label) for text in train.source])
    most_frequent = np.full_like(classes, np.bincount(train_classes).argmax())
    majority = confusion_matrix(classes, most_frequent, len(labels))
    if train is None:
        return majority, None
    with working("training the bag of words"):
        bag = BagOfWords.train([text.text for text in train.source], train_classes.tolist(), len(labels))
        chosen = np.array(bag.classify(texts), dtype=np.int64)
    return majority, confusion_matrix(classes, chosen, len(labels))
