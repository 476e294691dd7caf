"""The final metrics of a run, with their names, formats and which direction is better."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpt_cli.report.run_record import RunRecord
from gpt_cli.run.lifecycle import why_over
from gpt_cli.terminal.words import format_duration

Value = int | float | str | None


@dataclass(frozen=True)
class Figure:
    """The name and format of a metric, and which direction is better."""

    label: str
    show: Callable[[Any], str]
    better: int = 0
    """-1: lower is better, 1: higher is; 0: neither."""


def _whole(value: int) -> str:
    return f"{value:,}"


def _decimals(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:,.{digits}f}"


FIGURES: dict[str, Figure] = {
    "bpb": Figure("bits per byte", _decimals(4), -1),
    "best_bpb": Figure("best bits per byte", _decimals(4), -1),
    "accuracy": Figure("accuracy", _decimals(4), 1),
    "macro_f1": Figure("macro F1", _decimals(4), 1),
    "val_loss": Figure("validation loss (nats)", _decimals(4), -1),
    "best_val_loss": Figure("best validation loss", _decimals(4), -1),
    "val_tokens": Figure("tokens evaluated, where capped", _whole),
    "perplexity": Figure("perplexity", _decimals(3), -1),
    "bpc": Figure("bits per character", _decimals(4), -1),
    "parameters": Figure("parameters", _whole),
    "vocabulary": Figure("vocabulary (ids)", _whole),
    "bytes_per_token": Figure("bytes per token", _decimals(3)),
    "steps": Figure("steps", _whole),
    "tokens": Figure("tokens trained on", _whole),
    "epochs": Figure("epochs", _decimals(2)),
    "seconds": Figure("training time", format_duration, -1),
    "tokens_per_second": Figure("tokens per second", _decimals(0), 1),
    "bytes_per_second": Figure("bytes per second", _decimals(0), 1),
}


def figures(record: RunRecord) -> dict[str, Value]:
    """The metrics of a run by the names in FIGURES; None for those it does not have yet."""
    last = record.evaluations[-1] if record.evaluations else {}
    losses = [line["val_loss"] for line in record.evaluations]
    bits = [line["bpb"] for line in record.evaluations if "bpb" in line]
    tokens = max((line["tokens"] for line in record.metrics if "tokens" in line), default=0)
    seconds = max((line["time"] for line in record.metrics if "time" in line), default=None)
    if record.saved is not None and record.saved.step == record.steps and record.saved.seconds:
        seconds = record.saved.seconds  # with the last evaluation
    rate = tokens / seconds if seconds and tokens else None
    return {
        "bpb": last.get("bpb"),
        "best_bpb": min(bits, default=None),
        "accuracy": last.get("accuracy"),
        "macro_f1": last.get("macro_f1"),
        "val_loss": last.get("val_loss"),
        "best_val_loss": min(losses, default=None),
        "val_tokens": last.get("val_tokens"),
        "perplexity": math.exp(min(last["val_loss"], 700.0)) if last else None,
        "bpc": last.get("bpc"),
        "parameters": record.parameters,
        "vocabulary": record.tokenizer.vocab_size,
        "bytes_per_token": record.bytes_per_token,
        "steps": record.steps,
        "tokens": tokens,
        "epochs": _epochs(record, last, tokens),
        "seconds": seconds,
        "tokens_per_second": rate,
        "bytes_per_second": None if rate is None else rate * record.bytes_per_token,
    }


def _epochs(record: RunRecord, evaluation: dict[str, Any], tokens: int) -> float:
    """Epochs by the last step: an evaluation says how many there were by its own, but for older runs."""
    if evaluation.get("epochs") and evaluation["step"]:
        return float(evaluation["epochs"]) * (record.steps / int(evaluation["step"]))
    return tokens / max(1, record.splits["train"].tokens)


def format_metric(key: str, value: Value) -> str:
    """A metric as text; a dash for None."""
    return "–" if value is None else FIGURES[key].show(value)


def run_outcome(record: RunRecord) -> str:
    total = record.config.train.steps
    endings = [event for event in record.events if event["event"] in ("started", "ended", "died", "killed")]
    match endings[-1] if endings else None:
        case {"event": "died", "error": error}:
            return f"died at step {record.steps:,}: {re.sub(r'^(User|NonFinite)Error: ', '', str(error))}"
        case {"event": "killed"}:
            return f"was killed at step {record.steps:,} of {total:,}"
        case {"event": "started"} if record.steps < total:
            return f"is at step {record.steps:,} of {total:,}"
    if (reason := why_over(record.events, record.steps)) is not None:
        return f"ended at step {record.steps:,} of {total:,}: {reason}"
    if record.steps < total:
        return f"stopped at step {record.steps:,} of {total:,}"
    return f"finished all {total:,} steps" if total != 1 else "finished its one step"
