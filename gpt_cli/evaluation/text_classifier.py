"""A run that learned classes, ready to say of any text which label it has.

Shapes: E texts, K classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt_cli.errors import Notify, RequestError
from gpt_cli.literals import Device
from gpt_cli.model.sequence_classifier import SequenceClassifier
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.load_model import build_model
from gpt_cli.runtime.device import Runtime, setup_runtime
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.training.class_evaluation import class_log_probs

_AT_ONCE = 1024  # texts that are read before the first verdict


@dataclass(frozen=True)
class Classification:
    """The verdict on one text."""

    label: str
    """The likeliest one; of equally likely ones the first."""
    probabilities: dict[str, float]
    """Of every label, the likeliest first; they add up to 1."""

    def top(self, most: int | None) -> dict[str, float]:
        """The likeliest labels; None: all."""
        return dict(list(self.probabilities.items())[:most])


@dataclass(frozen=True)
class TextClassifier:
    """A model with its tokenizer and the names of its classes."""

    model: SequenceClassifier
    tokenizer: Tokenizer
    labels: list[str]
    runtime: Runtime
    path: Path
    """The checkpoint that it is of."""
    note: Notify

    @classmethod
    def of(cls, saved: Checkpoint, device: Device, note: Notify) -> "TextClassifier":
        """The classifier in a checkpoint. Raises UserError if its weights do not fit its config."""
        runtime = setup_runtime(saved.config.runtime.model_copy(update={"device": device}))
        loaded = build_model(saved, runtime.device)
        assert isinstance(loaded.model, SequenceClassifier)
        assert saved.config.task.labels is not None
        return cls(loaded.model, saved.tokenizer, saved.config.task.labels, runtime, loaded.path, note)

    def classify(self, texts: Sequence[str]) -> list[Classification]:
        """The verdict on each text, which depends on no other; of a text longer than the context its begin is read.

        Raises RequestError for an empty text, and UnknownCharacters for what the vocabulary lacks.
        """
        if isinstance(texts, str):
            raise TypeError("classify takes a list of texts")
        context = self.model.config.context_length
        ids = []
        for number, text in enumerate(texts, start=1):
            if not text.strip():
                raise RequestError(f"text {number:,} is empty: there is nothing to classify")
            ids.append(self.tokenizer.encode(text))
        if too_long := sum(len(row) > context for row in ids):
            self.note(f"of {too_long:,} of {len(ids):,} texts only the first {context:,} tokens are read")
        found: list[Classification] = []
        for start in range(0, len(ids), _AT_ONCE):
            rows = [row[:context] for row in ids[start : start + _AT_ONCE]]
            found += [self._verdict(row.tolist()) for row in class_log_probs(self.model, rows, self.runtime)]
        return found

    def _verdict(self, log_probs: list[float]) -> Classification:
        order = sorted(range(len(log_probs)), key=lambda number: -log_probs[number])
        probabilities = {self.labels[number]: math.exp(log_probs[number]) for number in order}
        return Classification(self.labels[order[0]], probabilities)
