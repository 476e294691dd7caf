"""`gpt score --labels`: which label a model would give each text, and how often it is right."""

import json
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt_cli.cli.output import note, print_json
from gpt_cli.cli.unknown_characters import UnknownChoice, without_unknown
from gpt_cli.terminal.escape import display_width, escape_control_chars
from gpt_cli.terminal.plural import plural

if TYPE_CHECKING:
    from gpt_cli.evaluation.classifier import Classifier, Prediction
    from gpt_cli.evaluation.confusion import ConfusionMatrix
    from gpt_cli.evaluation.texts_to_classify import Example

_LENGTHS = {"none": "as it is", "tokens": "over its tokens", "bytes": "over its bytes"}


def print_labels(
    classifier: "Classifier",
    examples: "Sequence[Example]",
    unknown: UnknownChoice,
    worst: int | None,
    *,
    jsonl: bool,
    as_json: bool,
    head: dict[str, Any],
) -> None:
    """Print a verdict for each text, or, where all true labels are known, how many are right."""
    from gpt_cli.evaluation.confusion import ConfusionMatrix, index_of

    truths = [index_of(example, classifier.labels) for example in examples]
    texts = _known(classifier, examples, unknown)
    tally = ConfusionMatrix(classifier.labels)
    judged: list[tuple[Example, int | None, Prediction]] = []
    for example, true, verdict in zip(examples, truths, classifier.classify(texts), strict=True):
        if true is not None:
            tally.add(true, verdict.best)
        if jsonl:
            print(json.dumps(_as_object(example, true, verdict, classifier.labels), allow_nan=False), flush=True)
        else:
            judged.append((example, true, verdict))
    if as_json:
        print_json(head | _figures(tally, classifier, len(examples)))
        return
    if worst is not None:  # the true label's share is lowest; without one, the chosen one's
        judged.sort(key=lambda one: one[2].probs[one[2].best if one[1] is None else one[1]])
    if not jsonl:
        known = tally.examples > 0
        if not known or worst is not None:
            print(_render(judged[:worst], classifier.labels, known=known))
        if known:
            print(("\n" if worst is not None else "") + _render_tally(tally))
    texts_read = plural(len(examples), "text")
    note(f"{texts_read}; the score of a label is its log-probability, {_LENGTHS[classifier.normalise]}")


def _known(classifier: "Classifier", examples: "Sequence[Example]", unknown: UnknownChoice) -> list[str]:
    """The texts, without unknown characters if these are skipped; else UnknownCharacters with the place of the text."""
    from gpt_cli.tokenizer import UnknownCharacters

    tokenizer, skip = classifier.tokenizer, unknown == "skip"
    if not skip and tokenizer.unk_id is None:
        for example in examples:
            if missing := tokenizer.unknown_characters(example.text):
                error = UnknownCharacters({character: example.text.index(character) for character in missing})
                error.where = example.where
                raise error
    return without_unknown(tokenizer, [example.text for example in examples], skip=skip, source="texts")


def _as_object(example: "Example", true: int | None, verdict: "Prediction", labels: Sequence[str]) -> dict[str, Any]:
    """A verdict for JSON; shares and log-probabilities by label."""
    named = {"text": example.text, "label": None if true is None else labels[true], "chosen": labels[verdict.best]}
    return named | {
        "right": None if true is None else true == verdict.best,
        "log_probs": {label: round(value, 6) for label, value in zip(labels, verdict.log_probs, strict=True)},
        "shares": {label: round(value, 6) for label, value in zip(labels, verdict.probs, strict=True)},
    }


def _figures(tally: "ConfusionMatrix", classifier: "Classifier", texts: int) -> dict[str, Any]:
    """All sums by name; what needs true labels is null without any."""
    known = tally.examples > 0
    return {
        "labels": list(classifier.labels),
        "normalise": classifier.normalise,
        "texts": texts,
        "labelled": tally.examples,
        "accuracy": tally.accuracy if known else None,
        "majority": tally.majority if known else None,
        "confusion": tally.confusion if known else None,
    }


def _render(judged: "Sequence[tuple[Example, int | None, Prediction]]", labels: Sequence[str], *, known: bool) -> str:
    """A row for each text: what was chosen, how sure, and the text as far as there is room."""
    from gpt_cli.terminal.table import render_table, shorten

    rows: list[list[object]] = []
    for _, true, verdict in judged:
        row: list[object] = [labels[verdict.best].strip(), f"{verdict.probs[verdict.best]:.3f}"]
        rows.append([*row, "" if true is None else labels[true].strip()] if known else row)
    header = ["chosen", "share", "true"] if known else ["chosen", "share"]
    left = render_table(rows, header=header, right={1}, width=None).split("\n")
    width = max(map(display_width, left))
    room = max(10, shutil.get_terminal_size().columns - width - 2)
    texts = ["text", *(shorten(escape_control_chars(example.text), room) for example, _, _ in judged)]
    pairs = zip(left, texts, strict=True)
    return "\n".join(f"{row}{' ' * (width - display_width(row))}  {text}".rstrip() for row, text in pairs)


def _render_tally(tally: "ConfusionMatrix") -> str:
    """Accuracy, what the most frequent label alone would reach, and the confusion table."""
    from gpt_cli.terminal.table import render_pairs, render_table

    names = [label.strip() for label in tally.labels]
    rows = [[name, *counts, sum(counts)] for name, counts in zip(names, tally.confusion, strict=True)]
    table = render_table(rows, header=["true \\ chosen", *map(escape_control_chars, names), "all"])
    accuracy = f"{tally.accuracy:.4f} ({tally.right:,} of {tally.examples:,})"
    majority = f"{tally.majority:.4f} (always the most frequent label)"
    return render_pairs({"accuracy": accuracy, "majority": majority}) + "\n\n" + table
