"""Classify texts with a trained classifier.

Shapes: E texts, K classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpt_cli.errors import Notify, RequestError
from gpt_cli.literals import Device
from gpt_cli.model.sequence_classifier import SequenceClassifier
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.load_model import build_model
from gpt_cli.runtime.device import Runtime, restoring_settings, setup_runtime
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.training.class_evaluation import class_log_probs

_BATCH_SIZE = 1024  # texts that are classified at once


@dataclass(frozen=True)
class Classification:
    """The prediction for one text."""

    label: str
    """The most likely label; of equals the first."""
    probabilities: dict[str, float]
    """Label -> probability, the most likely first; they sum to 1."""

    def top(self, limit: int | None) -> dict[str, float]:
        """The `limit` most likely labels; None: all."""
        return dict(list(self.probabilities.items())[:limit])


@dataclass(frozen=True)
class TextClassifier:
    """A model with its tokenizer and the names of its classes."""

    model: SequenceClassifier
    tokenizer: Tokenizer
    labels: list[str]
    runtime: Runtime
    """As in training; `classify` computes in fp32."""
    path: Path
    """The checkpoint it was loaded from."""
    note: Notify

    @classmethod
    @restoring_settings()
    def of(cls, saved: Checkpoint, device: Device, note: Notify) -> "TextClassifier":
        """The classifier in a checkpoint. Raises UserError if its weights do not fit its config."""
        runtime = setup_runtime(saved.config.runtime.model_copy(update={"device": device}))
        loaded = build_model(saved, runtime.device)
        assert isinstance(loaded.model, SequenceClassifier)
        assert saved.config.task.labels is not None
        return cls(loaded.model, saved.tokenizer, saved.config.task.labels, runtime, loaded.path, note)

    @restoring_settings()
    def classify(self, texts: Sequence[str], places: Sequence[str | None] = ()) -> list[Classification]:
        """The prediction for each text, independent of the others; a text is truncated to the context.

        Raises RequestError for an empty text, and UnknownCharacters for characters that are not in the vocabulary; the
        error's place is that of the text in `places`, if they are given.
        """
        if isinstance(texts, str):
            raise TypeError("classify takes a list of texts")
        context = self.model.config.context_length
        ids = []
        for number, text in enumerate(texts, start=1):
            if not isinstance(text, str):
                raise TypeError(f"a text is a str, not {type(text).__name__}")
            try:
                if not text.strip():
                    raise RequestError(f"text {number:,} is empty: there is nothing to classify")
                ids.append(self.tokenizer.encode_prompt(text))
            except RequestError as error:
                error.where = error.where or (places[number - 1] if places else None)
                raise
        if too_long := sum(len(row) > context for row in ids):
            self.note(f"of {too_long:,} of {len(ids):,} texts only the first {context:,} tokens are read")
        runtime = replace(self.runtime, precision="fp32")  # in less, rounding depends on the texts beside it
        runtime.apply()
        results: list[Classification] = []
        for start in range(0, len(ids), _BATCH_SIZE):
            rows = [row[:context] for row in ids[start : start + _BATCH_SIZE]]
            results += [self._classification(row.tolist()) for row in class_log_probs(self.model, rows, runtime)]
        return results

    def _classification(self, log_probs: list[float]) -> Classification:
        order = sorted(range(len(log_probs)), key=lambda number: -log_probs[number])
        probabilities = {self.labels[number]: math.exp(log_probs[number]) for number in order}
        return Classification(self.labels[order[0]], probabilities)
