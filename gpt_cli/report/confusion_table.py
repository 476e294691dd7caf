"""The confusion matrix of a classifier as a table with shaded cells."""

from dataclasses import dataclass, field

from gpt_cli.errors import Notify, UserError
from gpt_cli.evaluation.classify_run import evaluate_classifier
from gpt_cli.evaluation.text_classifier import TextClassifier
from gpt_cli.report.run_record import RunRecord
from gpt_cli.run.open_checkpoint import open_checkpoint

_MAX_LABELS = 40


@dataclass(frozen=True)
class ConfusionTable:
    """Rows: true labels; columns: predicted labels."""

    labels: list[str] = field(default_factory=list)
    rows: list[list[tuple[int, float]]] = field(default_factory=list)
    """The count of each cell, and its share of the row."""
    sentence: str = ""
    """The metrics and baselines in a sentence, or the reason why there are none."""


def confusion_table(record: RunRecord, note: Notify) -> ConfusionTable:
    """The table of the newest checkpoint on the validation texts; if they cannot be read, the reason."""
    try:
        saved = open_checkpoint(record.path, note, "classes")
        report = evaluate_classifier(saved, TextClassifier.of(saved, "cpu", note), None, "val", note)
    except UserError as error:
        note(f"no confusion matrix for {record.name}: {error.message}")
        return ConfusionTable(sentence=f"No confusion matrix: {error.message}.")
    figures = report.figures()
    sentence = (
        f"Of {figures['texts']:,} validation texts: accuracy {figures['accuracy']:.4f}, macro F1"
        f" {figures['macro_f1']:.4f}, calibration error {figures['calibration_error']:.4f}. A bag of words reaches"
        f" {figures['bag_of_words_accuracy']:.4f} and {figures['bag_of_words_macro_f1']:.4f}, the most frequent label"
        f" {figures['majority_accuracy']:.4f} and {figures['majority_macro_f1']:.4f}."
    )
    if len(report.labels) > _MAX_LABELS:
        return ConfusionTable(sentence=f"{sentence} Of {len(report.labels):,} labels no matrix is drawn.")
    counts = report.evaluation.confusion.tolist()
    rows = [[(count, count / max(1, sum(row))) for count in row] for row in counts]
    return ConfusionTable(report.labels, rows, sentence)
