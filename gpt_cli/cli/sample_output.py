"""Output of `gpt sample`: texts as they are written, and objects for JSON."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gpt_cli.cli.options.prompts import Prompt
from gpt_cli.cli.output import note, write_text
from gpt_cli.sampling import TextStream
from gpt_cli.sampling.text_stream import FinishReason

if TYPE_CHECKING:
    from gpt_cli.evaluation.novelty import TrainingText


def sample_record(text: TextStream, copies: "TrainingText | None") -> dict[str, Any]:
    """A text for JSON; with its log-probabilities if they were requested."""
    record: dict[str, Any] = {"text": text.text(), "tokens": text.tokens}
    if text.log_probs is not None:
        record["log_probs"] = [round(log_prob, 6) for log_prob in text.log_probs]
    record["finish_reason"] = text.finish_reason
    return record if copies is None else {**record, "novelty": copies.measure(text.text())}


def print_samples(
    prompts: Sequence[str], texts: Iterable[Sequence[TextStream]], raw: bool, copies: "TrainingText | None"
) -> list[FinishReason | None]:
    """Print each text after its prompt, as it is being written; of a batch, the first unfinished one is live.

    Returns why each of them ended.
    """
    reasons: list[FinishReason | None] = []
    longest = 0
    for number, (prompt, samples) in enumerate(zip(prompts, texts, strict=True), start=1):
        for i, text in enumerate(samples, start=1):
            parts = [f"prompt {number} of {len(prompts)}"] * (len(prompts) > 1)
            parts += [f"sample {i} of {len(samples)}"] * (len(samples) > 1)
            if parts:
                write_text(f"--- {', '.join(parts)}\n")
            write_text(prompt, raw)
            last = prompt
            for last in text:
                write_text(last, raw)
            if not last.endswith("\n"):
                write_text("\n")
            reasons.append(text.finish_reason)
            if copies is not None:
                longest = max(longest, len(text.text()))
                note(copies.describe(text.text()))
    if copies is not None:
        passage = copies.validation[:longest]
        note(f"the first {len(passage):,} characters of the validation text, for comparison:")
        note(copies.describe(passage))
    return reasons


def print_lines(texts: Iterable[tuple[Prompt, Sequence[TextStream]]], seed: int, copies: "TrainingText | None") -> None:
    """Print a JSON object for each text as soon as it is complete, in the order of the prompts."""
    for prompt, samples in texts:
        for number, text in enumerate(samples, start=1):
            begin = {} if prompt.id is None else {"id": prompt.id}
            begin |= {"prompt": prompt.text, "sample": number, "seed": seed}
            print(json.dumps(begin | sample_record(text, copies), allow_nan=False), flush=True)
