"""`gpt eval` of a run that learned classes: its figures, and the confusion matrix where it fits."""

from typing import TYPE_CHECKING, Literal

from gpt_cli.cli.output import note, print_json
from gpt_cli.cli.process import gc_paused
from gpt_cli.errors import RequestError
from gpt_cli.literals import Device
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.terminal.table import render_pairs, render_table

if TYPE_CHECKING:
    from gpt_cli.evaluation.classify_run import ClassReport

_MAX_COLUMNS = 12  # of a confusion matrix


def print_classes(
    saved: Checkpoint,
    text: str | None,
    split: Literal["val", "test"],
    device: Device,
    *,
    json: bool,
    encoding: str | None,
    text_key: str | None,
    skip_unknown: bool,
) -> None:
    """Evaluate, and print what `gpt eval` prints. `encoding` and `text_key`: of `text`, None as the run's."""
    data = saved.config.data
    if text_key is not None and text_key == data.label_key:
        raise RequestError(f"--text-key and the run's data.label_key are both '{text_key}'")
    data = data.model_copy(update={"encoding": encoding or data.encoding, "text_key": text_key or data.text_key})
    with gc_paused():
        from gpt_cli.evaluation.classify_run import evaluate_classifier
        from gpt_cli.evaluation.text_classifier import TextClassifier

    classifier = TextClassifier.of(saved, device, note)
    report = evaluate_classifier(saved, classifier, text, split, note, data, skip_unknown=skip_unknown)
    print_json(report.to_json()) if json else print(f"{render_pairs(report.figures())}\n\n{_confusion(report)}")


def _confusion(report: "ClassReport") -> str:
    """The matrix; of many labels those that are confused most."""
    counts, names = report.evaluation.confusion, report.labels
    if len(names) <= _MAX_COLUMNS:
        header = ["true \\ chosen", *map(str, range(len(names))), "all"]
        rows = [
            [f"{number} {name}", *row, sum(row)]
            for number, (name, row) in enumerate(zip(names, counts.tolist(), strict=True))
        ]
        return render_table(rows, header=header)
    cells = [(int(counts[i, j]), names[i], names[j]) for i in range(len(names)) for j in range(len(names)) if i != j]
    wrong = sorted(cells, key=lambda cell: -cell[0])[:_MAX_COLUMNS]
    return render_table([cell for cell in wrong if cell[0]], header=["texts", "true", "chosen"], right={0})
