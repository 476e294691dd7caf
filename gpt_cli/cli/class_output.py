"""`gpt eval` of a run that learned classes: its figures, and the confusion matrix where it fits."""

from typing import TYPE_CHECKING, Literal

from gpt_cli.cli.output import note, print_json
from gpt_cli.errors import RequestError
from gpt_cli.literals import Device

if TYPE_CHECKING:
    from gpt_cli.evaluation.classify_run import ClassReport
    from gpt_cli.run.checkpoint import Checkpoint

_MAX_COLUMNS = 12  # of a confusion matrix


def print_classes(
    saved: "Checkpoint",
    text: str | None,
    split: Literal["val", "test"],
    device: Device,
    *,
    json: bool,
    encoding: str | None = None,
    text_key: str | None = None,
    skip_unknown: bool = False,
) -> None:
    """Evaluate, and print what `gpt eval` prints. `encoding` and `text_key`: of `text`, None as the run's."""
    from gpt_cli.evaluation.classify_run import evaluate_classifier
    from gpt_cli.evaluation.text_classifier import TextClassifier
    from gpt_cli.terminal.table import render_pairs

    options = {"encoding": encoding, "text_key": text_key}
    if text_key is not None and text_key == saved.config.data.label_key:
        raise RequestError(f"--text-key and the run's data.label_key are both '{text_key}'", hint="name another key")
    data = saved.config.data.model_copy(update={key: value for key, value in options.items() if value is not None})
    classifier = TextClassifier.of(saved, device, note)
    report = evaluate_classifier(saved, classifier, text, split, note, data, skip_unknown=skip_unknown)
    if json:
        print_json(report.to_json())
        return
    print(render_pairs(report.figures()) + "\n\n" + _confusion(report))


def _confusion(report: "ClassReport") -> str:
    """The matrix; of many labels those that are confused most."""
    from gpt_cli.terminal.table import render_table

    counts = report.evaluation.confusion
    names = report.labels
    if len(names) <= _MAX_COLUMNS:
        columns = [str(number) for number in range(len(names))]
        rows = [
            [f"{number} {name}", *row, sum(row)]
            for number, (name, row) in enumerate(zip(names, counts.tolist(), strict=True))
        ]
        return render_table(rows, header=["true \\ chosen", *columns, "all"])
    wrong = sorted(
        ((int(counts[i, j]), names[i], names[j]) for i in range(len(names)) for j in range(len(names)) if i != j),
        key=lambda one: -one[0],
    )
    return render_table([one for one in wrong[:_MAX_COLUMNS] if one[0]], header=["texts", "true", "chosen"], right={0})
