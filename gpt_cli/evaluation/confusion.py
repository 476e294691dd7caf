"""The confusion matrix of a classification."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from shlex import quote

from gpt_cli.errors import RequestError
from gpt_cli.evaluation.texts_to_classify import Example
from gpt_cli.terminal.escape import escape_control_chars


@dataclass
class ConfusionMatrix:
    """Counts of predictions for examples whose label is known."""

    labels: Sequence[str]
    confusion: list[list[int]] = field(init=False)
    """Rows: true labels; columns: predicted labels."""

    def __post_init__(self) -> None:
        self.confusion = [[0] * len(self.labels) for _ in self.labels]

    def add(self, true: int, chosen: int) -> None:
        self.confusion[true][chosen] += 1

    @property
    def examples(self) -> int:
        return sum(map(sum, self.confusion))

    @property
    def right(self) -> int:
        return sum(row[i] for i, row in enumerate(self.confusion))

    @property
    def accuracy(self) -> float:
        return self.right / self.examples

    @property
    def majority(self) -> float:
        """The accuracy of always predicting the most frequent true label."""
        return max(map(sum, self.confusion)) / self.examples


def parse_labels(text: str) -> list[str]:
    """Split `a,b,c` into labels, with their spaces. Raises RequestError for fewer than two, empty or repeated ones."""
    labels = text.split(",")
    filled = [label for label in labels if label.strip()]
    if len(filled) < 2:
        raise RequestError("--labels needs at least two texts", hint="--labels yes,no")
    if len(filled) < len(labels):
        empty = next(number for number, label in enumerate(labels, start=1) if not label.strip())
        raise RequestError(f"label {empty} of --labels is empty", hint=f"--labels {quote(','.join(filled))}")
    if len({label.strip() for label in labels}) < len(labels):
        raise RequestError("--labels names a label twice")
    return labels


def index_of(example: Example, labels: Sequence[str]) -> int | None:
    """The index of an example's label, ignoring spaces around it; None without one. Raises RequestError if unknown."""
    if example.label is None:
        return None
    names = [label.strip() for label in labels]
    if example.label.strip() not in names:
        raise RequestError(
            f"the label '{escape_control_chars(example.label[:50])}' is none of --labels",
            where=example.where,
            hint="name all labels of the file, or leave out the texts of others; --label-key names another key",
        )
    return names.index(example.label.strip())
