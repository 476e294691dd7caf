"""`gpt report`: runs as a self-contained HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from gpt_cli import __version__
from gpt_cli.analysis.baselines import Baseline
from gpt_cli.config import Config, to_yaml_scalar
from gpt_cli.config.keys import description, fields, get_key
from gpt_cli.corpus.sources import refuse_overwriting
from gpt_cli.errors import Notify, UserError
from gpt_cli.literals import SUBWORD_KINDS
from gpt_cli.report.chart import Line, ReferenceLine, draw_chart
from gpt_cli.report.confusion_table import ConfusionTable, confusion_table
from gpt_cli.report.html import check_page, render_page, write_page
from gpt_cli.report.run_baselines import RunBaselines
from gpt_cli.report.run_diff import compare
from gpt_cli.report.run_metrics import figures, format_metric, run_outcome
from gpt_cli.report.run_record import RunRecord, read_records
from gpt_cli.report.series import X_LABELS, Measure, Series, XAxis, series, smooth
from gpt_cli.run.model_info import describe
from gpt_cli.run.overfitting import find_overfitting
from gpt_cli.terminal.words import format_duration, format_size
from gpt_cli.tokenizer.vocab_stats import longest_tokens, repr_token

COLOURS = 7  # that the style sheet has
_TOKENS = 8  # longest ones that are listed
_AXES: dict[XAxis, str] = {"step": "steps", "tokens": "tokens", "bytes": "bytes of text", "time": "time"}


@dataclass(frozen=True)
class Chart:
    """One measure of all runs, drawn over each horizontal axis."""

    title: str
    about: str
    drawings: dict[XAxis, Markup]


@dataclass(frozen=True)
class Bar:
    """The bits per byte of a run or a baseline."""

    name: str
    bits: float
    share: float
    """Share of the longest bar."""
    colour: int | None


@dataclass(frozen=True)
class ReportRun:
    """A run with its formatted metrics, baselines and confusion matrix."""

    record: RunRecord
    colour: int
    figures: dict[str, str]
    ending: str
    failed: bool
    baselines: list[Baseline] = field(default_factory=list)
    no_baselines: str = ""
    """Why there are none."""
    unused: int | None = None
    confusion: list[ConfusionTable] = field(default_factory=list)
    """The matrix of the newest checkpoint, if the run is a classifier."""


def write_report(runs: Sequence[Path], output: Path, *, baselines: bool, note: Notify) -> None:
    """Write the report of `runs` to `output`, one .html file.

    With `baselines`, the text of each run is read again and measured. Raises RequestError for an output that cannot
    be written, UserError for a run that cannot be read.
    """
    check_page(output)
    records = read_records(runs, note)
    for data in (record.config.data for record in records):
        refuse_overwriting(output, [*data.sources, *data.val_sources], "-o")
    write_page(output, render_report(records, baselines=baselines, note=note))


def render_report(records: Sequence[RunRecord], *, baselines: bool, note: Notify) -> str:
    collected = [_collect(record, number, baselines, note) for number, record in enumerate(records)]
    same_tokenizer = len({record.tokenizer.digest for record in records}) == 1  # else tokens do not compare
    return render_page(
        "report.html",
        "report.js",
        title=" and ".join(record.name for record in records) if len(records) < 3 else f"{len(records)} runs",
        version=__version__,
        runs=collected,
        sentences=[_sentence(run) for run in collected],
        alone=len(records) == 1,
        axes=_AXES,
        chosen="step" if len(records) == 1 else "tokens" if same_tokenizer else "bytes",
        charts=_charts(collected),
        bars=_bars(collected),
        differences=compare(records) if len(records) > 1 else {},
        timelines=[_timeline(record) for record in records],
        configs=[_config(record.config) for record in records],
        models=[_model(record) for record in records],
        tokens=[_longest_tokens(record) for record in records],
    )


def _collect(record: RunRecord, number: int, baselines: bool, note: Notify) -> ReportRun:
    formatted = {key: format_metric(key, value) for key, value in figures(record).items()}
    outcome = run_outcome(record)
    base = ReportRun(record, number % COLOURS, formatted, outcome, outcome.startswith(("died", "was killed")))
    if record.config.task.kind == "classes":
        reason = "these are of texts; gpt eval has those of classes"
        tables = [confusion_table(record, note)] if baselines else []
        return ReportRun(**{**vars(base), "no_baselines": reason, "confusion": tables})
    if record.config.data.format != "text":
        reason = "they are of whole texts, and the loss is that of completions"
        return ReportRun(**{**vars(base), "no_baselines": reason})
    if not baselines:
        return ReportRun(**{**vars(base), "no_baselines": "not measured: --no-baselines was given"})
    try:
        text = RunBaselines(record, note)
        return ReportRun(**{**vars(base), "baselines": text.baselines(), "unused": text.unused()})
    except UserError as error:
        note(f"no baselines for {record.name}: {error.message}")
        return ReportRun(**{**vars(base), "no_baselines": error.message})


def _charts(runs: Sequence[ReportRun]) -> list[Chart]:
    levels = _best_baselines(runs[0].baselines) if _one_text(runs) else []
    units = {run.record.config.task.predicted for run in runs}
    return [
        _accuracy(runs)
        if all(run.record.config.task.kind == "classes" for run in runs)
        else Chart(
            "Bits per byte",
            "By which any two models compare. Training smoothed; dots are validation; the steep start is cut off.",
            _over_axes(runs, "train_bpb", "bpb", "bits per byte", levels=levels, faint=False),
        ),
        Chart(
            "Loss",
            "Each training step faint, smoothed strong; dots are validation.",
            _over_axes(runs, "loss", "val_loss", f"nats per {units.pop()}" if len(units) == 1 else "nats"),
        ),
        Chart(
            "Learning rate",
            "As the schedule has it; its peak is optim.lr.",
            _over_axes(runs, "lr", None, "learning rate", scale="zero", smoothed=False),
        ),
        Chart(
            "Gradient norm",
            "Before it is clipped.",
            _over_axes(runs, "grad_norm", None, "gradient norm", scale="log"),
        ),
        Chart(
            "Throughput",
            "Without evaluations; samples and checkpoints count.",
            _over_axes(runs, "throughput", None, "tokens per second", scale="zero"),
        ),
    ]


def _accuracy(runs: Sequence[ReportRun]) -> Chart:
    """The chart of accuracy and macro F1 on validation texts."""
    drawn = _over_axes(runs, "accuracy", "macro_f1", "share", scale="zero", faint=False, smoothed=False)
    return Chart("Accuracy", "Of validation: the line is the accuracy, dots are the macro F1.", drawn)


def _best_baselines(baselines: Sequence[Baseline]) -> list[ReferenceLine]:
    """The n-gram model and the compressor with the fewest bits per byte."""
    ngrams = [baseline for baseline in baselines if baseline.name.endswith("gram")]
    compressors = [baseline for baseline in baselines if baseline.name in ("zlib", "xz")]
    best = [min(group, key=lambda b: b.bits_per_byte) for group in (ngrams, compressors) if group]
    return [ReferenceLine(baseline.name, baseline.bits_per_byte) for baseline in best]


def _over_axes(
    runs: Sequence[ReportRun],
    training: Measure,
    validation: Measure | None,
    label: str,
    *,
    levels: Sequence[ReferenceLine] = (),
    scale: Literal["zero", "log", "cut"] = "cut",
    faint: bool = True,
    smoothed: bool = True,
) -> dict[XAxis, Markup]:
    drawings: dict[XAxis, Markup] = {}
    for x in _AXES:
        lines: list[Line] = []
        for run in runs:
            points = _series(run.record, training, x)
            prefix = "" if len(runs) == 1 else f"{run.record.name}, "
            if faint and smoothed:
                lines.append(Line(run.record.name, points, run.colour, "faint"))
            values = smooth(points.y) if smoothed else points.y
            lines.append(
                Line(f"{prefix}training" if validation else run.record.name, Series(points.x, values), run.colour)
            )
        for run in runs if validation else ():
            assert validation is not None
            dots = _series(run.record, validation, x)
            name = "validation" if len(runs) == 1 else f"{run.record.name}, validation"
            lines.append(Line(name, dots, run.colour, "dots"))
        drawings[x] = draw_chart(lines, X_LABELS[x], label, levels=levels, scale=scale, whole=x != "time")
    return drawings


def _series(record: RunRecord, measure: Measure, x: XAxis) -> Series:
    return series(record.metrics, measure, x, record.bytes_per_token, record.bytes_per_prediction)


def _one_text(runs: Sequence[ReportRun]) -> bool:
    """True if all runs have the same text, and so the same baselines."""
    first = runs[0].record
    return all(
        run.record.fingerprint == first.fingerprint and run.record.splits["val"].bytes == first.splits["val"].bytes
        for run in runs
    )


def _bars(runs: Sequence[ReportRun]) -> list[list[Bar]]:
    """Runs among the baselines of their text, worst first: one list for each text."""
    texts: dict[tuple[str, int], list[ReportRun]] = {}
    for run in runs:
        texts.setdefault((run.record.fingerprint, run.record.splits["val"].bytes), []).append(run)
    lists = []
    for group in texts.values():
        entries: list[tuple[str, float, int | None]] = [(b.name, b.bits_per_byte, None) for b in group[0].baselines]
        entries += [
            (run.record.name, bits, run.colour) for run in group if (bits := _best_bits(run.record)) is not None
        ]
        longest = max((bits for _, bits, _ in entries), default=1.0) or 1.0
        lists.append(
            [Bar(name, bits, bits / longest, colour) for name, bits, colour in sorted(entries, key=lambda bar: -bar[1])]
        )
    return lists


def _best_bits(record: RunRecord) -> float | None:
    best = figures(record)["best_bpb"]
    return float(best) if isinstance(best, int | float) else None


def _timeline(record: RunRecord) -> list[dict[str, Any]]:
    """Samples by prompt and step, with the loss at that step."""
    bits = {line["step"]: line.get("bpb") for line in record.evaluations}
    prompts: dict[str, list[dict[str, Any]]] = {}
    for sample in record.samples:
        step = sample["step"]
        prompts.setdefault(sample["prompt"], []).append({"step": step, "bpb": bits.get(step), "text": sample["text"]})
    return [{"prompt": prompt, "samples": samples} for prompt, samples in prompts.items()]


def _config(config: Config) -> list[dict[str, Any]]:
    """Each key with its value, default and description."""
    default = Config()
    return [
        {
            "key": key,
            "value": to_yaml_scalar(get_key(config, key)),
            "default": to_yaml_scalar(get_key(default, key)),
            "changed": get_key(config, key) != get_key(default, key),
            "about": description(definition),
        }
        for key, definition in fields().items()
    ]


def _model(record: RunRecord) -> Mapping[str, Any]:
    info = describe(record.path, record.config, record.tokenizer.vocab_size)
    memory = {name: format_size(size) for name, size in info.memory_bytes.items()}
    return {
        "tensors": [
            {"name": t.name, "shape": " x ".join(map(str, t.shape)), "tensors": t.tensors, "elements": t.parameters}
            for t in info.parameter_table
        ],
        "flops": info.flops_per_token,
        "memory": {**memory, "total": format_size(sum(info.memory_bytes.values()))},
    }


def _longest_tokens(record: RunRecord) -> list[str]:
    tokenizer = record.tokenizer
    if tokenizer.kind not in SUBWORD_KINDS:
        return []
    return [repr_token(tokenizer.token_bytes(token)) for token in longest_tokens(tokenizer, _TOKENS)]


def _sentence(run: ReportRun) -> str:
    """A summary of the run in a sentence, and one on overfitting."""
    record = run.record
    seconds = figures(record)["seconds"]
    duration = f" in {format_duration(float(seconds))}" if isinstance(seconds, int | float) else ""
    device = f" on {record.environment['device']}" if "device" in record.environment else ""
    outcome = run.ending.partition(":")[0]  # the reason is shown below
    kind = {"char": "characters", "byte": "bytes", "bpe": "BPE tokens", "hf": "tokens"}[record.tokenizer.kind]
    overfitting = find_overfitting(record.metrics)
    losses = "" if overfitting is None else f" Overfitting: {overfitting}."
    return f"A GPT of {record.parameters:,} parameters over {kind}; it {outcome}{duration}{device}.{losses}"
