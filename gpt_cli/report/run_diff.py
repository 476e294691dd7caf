"""Compare runs: config, text, environment and results. For `gpt diff` and the tables of reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpt_cli.config import to_yaml_scalar
from gpt_cli.config.keys import fields, get_key
from gpt_cli.report.run_metrics import FIGURES, Value, figures, format_metric
from gpt_cli.report.run_record import RunRecord
from gpt_cli.terminal.table import render_table

_PER_TEXT = ("bpb", "best_bpb", "bpc", "accuracy", "macro_f1")
_PER_TOKEN = ("val_loss", "best_val_loss", "perplexity", "tokens_per_second")


@dataclass(frozen=True)
class Row:
    """One property of runs: its value for each run, and the text that is shown."""

    key: str
    label: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]
    better: int = 0
    """As `Figure.better`."""

    @property
    def differs(self) -> bool:
        """True if the values are not all equal."""
        return any(value != self.values[0] for value in self.values[1:])

    @property
    def best(self) -> int | None:
        """Index of the best run; None if the values do not compare or are equal."""
        candidates = [(value, index) for index, value in enumerate(self.values) if value is not None]
        if not self.better or not self.differs or len(candidates) < 2:
            return None
        return (min if self.better < 0 else max)(candidates)[1]


Differences = dict[str, list[Row]]


def compare(records: Sequence[RunRecord]) -> Differences:
    """All rows of `results`, and the rows of `config`, `data` and `environment` in which the runs differ."""
    results_of = [figures(record) for record in records]
    results = [
        _result(key, [metrics[key] for metrics in results_of], comparable=_is_comparable(key, records))
        for key in FIGURES
    ]
    weights = [None if record.saved is None else record.saved.sha256 for record in records]
    results.append(_row("weights_sha256", weights, [text[:16] if text else "–" for text in weights], "weights sha256"))
    config = [_config_row(key, records) for key in fields() if key != "run_dir"]
    names = {name: None for record in records for name in record.environment}
    environment = [_row(name, [record.environment.get(name) for record in records]) for name in names]
    parts = {"config": config, "data": _data_rows(records), "environment": environment}
    return {"results": results} | {part: [row for row in rows if row.differs] for part, rows in parts.items()}


def to_json(records: Sequence[RunRecord], differences: Differences) -> dict[str, Any]:
    """`{"runs": [...], "config": {key: [value, ...]}, ...}`; a value for each run, in their order."""
    parts = {part: {row.key: row.values for row in rows} for part, rows in differences.items()}
    return {"runs": [str(record.path) for record in records], **parts}


def render_differences(records: Sequence[RunRecord], differences: Differences) -> str:
    """A table of each part with differences; of two runs the relative changes, too."""
    tables = []
    for part, rows in differences.items():
        if differing := [row for row in rows if row.differs]:
            lines = [(part, *(record.name for record in records), "")]
            lines += [(row.label, *row.texts, _change(row) if len(records) == 2 else "") for row in differing]
            tables.append(render_table(lines, right=range(1, len(lines[0])) if part == "results" else ()))
    return "\n\n".join(tables) if tables else "the runs do not differ"


def _result(key: str, values: Sequence[Value], *, comparable: bool) -> Row:
    figure, texts = FIGURES[key], tuple(format_metric(key, value) for value in values)
    return Row(key, figure.label, tuple(values), texts, figure.better if comparable else 0)


def _is_comparable(key: str, records: Sequence[RunRecord]) -> bool:
    """True if the metric compares between these runs: losses need one text, losses per token also one tokenizer."""
    if key not in (*_PER_TEXT, *_PER_TOKEN):
        return True
    one_text = len({_evaluated_part(record) for record in records}) == 1
    return one_text and (key in _PER_TEXT or len({record.tokenizer.digest for record in records}) == 1)


def _evaluated_part(record: RunRecord) -> tuple[Any, ...]:
    """The properties by which two validation texts, or the parts of them that were evaluated, differ."""
    config = record.config
    part: tuple[Any, ...] = ()
    if config.eval.max_tokens is not None:
        part = config.eval.max_tokens, record.tokenizer.digest
    if config.data.format != "text":
        part = *part, config.data.too_long, config.model.context_length, record.tokenizer.digest
    return record.fingerprint, record.splits["val"].bytes, *part


def _row(key: str, values: Sequence[Any], texts: Sequence[str] | None = None, label: str | None = None) -> Row:
    texts = texts if texts is not None else ["–" if value is None else str(value) for value in values]
    return Row(key, label or key, tuple(values), tuple(texts))


def _config_row(key: str, records: Sequence[RunRecord]) -> Row:
    """The value of `key` in each run; of one that was resumed with another, the list of all that it had."""
    values = [[*_earlier_values(key, record), get_key(record.config, key)] for record in records]
    texts = [", then ".join(map(to_yaml_scalar, had)) for had in values]
    return _row(key, [had if len(had) > 1 else had[0] for had in values], texts)


def _earlier_values(key: str, record: RunRecord) -> list[Any]:
    changes = [event.get("keys") for event in record.events if event["event"] == "config changed"]
    values = [change.get(key) for change in changes if isinstance(change, dict)]
    return [value[0] for value in values if isinstance(value, list) and value]


def _data_rows(records: Sequence[RunRecord]) -> list[Row]:
    rows = [
        _row("source", [record.source for record in records]),
        _row("sha256", [record.fingerprint for record in records], [record.fingerprint[:16] for record in records]),
        _row("tokenizer", [record.tokenizer.digest for record in records], [_tokenizer(record) for record in records]),
    ]
    for split in ("train", "val", "test"):
        for size in ("characters", "bytes", "tokens", "documents"):
            values = [getattr(record.splits[split], size) if split in record.splits else None for record in records]
            rows.append(_row(f"{split}.{size}", values, [f"{v:,}" if v is not None else "–" for v in values]))
    return rows


def _tokenizer(record: RunRecord) -> str:
    return f"{record.tokenizer.kind} {record.tokenizer.vocab_size:,} ({record.tokenizer.digest[:8]})"


def _change(row: Row) -> str:
    """The relative change from the first value to the second, if they compare."""
    first, second = row.values
    if not row.better or not isinstance(first, int | float) or not isinstance(second, int | float) or not first:
        return ""
    return f"{(second - first) / first:+.1%}"
