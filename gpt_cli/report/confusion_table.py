"""The confusion matrix of a classifier: a table with shaded cells, and one for the terminal."""

from dataclasses import dataclass, field

from gpt_cli.errors import Notify, UserError
from gpt_cli.evaluation.classify_run import ClassReport, evaluate_classifier
from gpt_cli.evaluation.text_classifier import TextClassifier
from gpt_cli.report.run_record import RunRecord
from gpt_cli.run.open_checkpoint import open_checkpoint
from gpt_cli.terminal.table import render_pairs, render_table

_MAX_LABELS = 40
_MAX_COLUMNS = 12  # on a terminal


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


def render_classes(report: ClassReport) -> str:
    """The figures, and the matrix; of many labels the pairs that are confused most."""
    counts, names = report.evaluation.confusion, report.labels
    if len(names) <= _MAX_COLUMNS:
        rows = [
            [f"{number} {name}", *row, sum(row)]
            for number, (name, row) in enumerate(zip(names, counts.tolist(), strict=True))
        ]
        matrix = render_table(rows, header=["true \\ chosen", *map(str, range(len(names))), "all"])
    else:
        cells = [
            (int(counts[i, j]), names[i], names[j]) for i in range(len(names)) for j in range(len(names)) if i != j
        ]
        wrong = sorted(cells, key=lambda cell: -cell[0])[:_MAX_COLUMNS]
        matrix = render_table([cell for cell in wrong if cell[0]], header=["texts", "true", "chosen"], right={0})
    return f"{render_pairs(report.figures())}\n\n{matrix}"
