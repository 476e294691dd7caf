"""Plot the metrics.jsonl of runs with Matplotlib."""

import math
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from gpt_cli.config import Config, load_config
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.files.kinds import is_checkpoint
from gpt_cli.report.figure_io import COLOURS, add_grid, check_output, label, new_axes, write_picture
from gpt_cli.report.run_record import bytes_per_prediction, read_bytes_per_token, run_names
from gpt_cli.report.series import X_LABELS, Curve, Measure, Metrics, Series, XAxis, series, smooth
from gpt_cli.run.checkpoint import CONFIG, list_checkpoints
from gpt_cli.run.find_run import run_around
from gpt_cli.run.log import read_metrics
from gpt_cli.run.run_files import is_imported

YAxis = Literal["loss", "bpb", "lr", "grad_norm", "throughput", "accuracy"]

_LABELS: dict[YAxis, str] = {
    "loss": "loss (nats per token)",
    "bpb": "bits per byte",
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "throughput": "tokens per second",
    "accuracy": "accuracy",
}
_WORDS: dict[YAxis, str] = {
    "lr": "learning rates",
    "grad_norm": "gradient norms",
    "throughput": "times",
    "accuracy": "accuracies",
}
_TRAINING: dict[YAxis, Measure] = {
    "loss": "loss",
    "bpb": "train_bpb",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "throughput": "throughput",
}
_VALIDATION: dict[YAxis, Measure] = {"loss": "val_loss", "bpb": "bpb", "accuracy": "accuracy"}
_NO_CURVE = Series(np.zeros(0), np.zeros(0))
_STYLES = (("-", "o"), ("--", "s"), ("-.", "^"))  # (line, marker), for more runs than colours
_WIDTH = 8.0  # inches


def plot_runs(
    runs: Sequence[Path],
    output: Path,
    *,
    x: XAxis = "step",
    y: YAxis = "loss",
    log_x: bool = False,
    log_y: bool = False,
    width: float = _WIDTH,
    note: Notify = lambda _: None,
) -> None:
    """Draw `y` of `runs` into `output`, `width` inches wide: training (each value, and a moving average) and, of
    losses, validation; of accuracies, validation alone.

    The suffix of `output` is its format: .png, .svg or .pdf; the same metrics give the same bytes. Notes each
    damaged line. Raises RequestError for an output that cannot be written, UserError for a run without these metrics.
    """
    check_output(output)
    figure, axes = new_axes(width, 0.6 * width)
    all_metrics = [read_metrics(run, note) for run in runs]
    _refuse_other_units(runs, all_metrics, y, output)
    for index, (run, name) in enumerate(zip(runs, map(label, run_names(runs)), strict=True)):
        _draw_run(axes, run, all_metrics[index], name, index, x, y, alone=len(runs) == 1)
    lines = axes.get_lines()
    for option, is_log, values in (
        ("--log-x", log_x, [line.get_xdata() for line in lines]),
        ("--log-y", log_y, [line.get_ydata() for line in lines]),
    ):
        if is_log and not any(np.any(np.asarray(points) > 0) for points in values):
            raise RequestError(f"{option}: no point is above 0", hint=f"leave {option} out")
    _draw_frame(axes, x, y, log_x, log_y)
    classify = [_is_classifier(run, metrics) for run, metrics in zip(runs, all_metrics, strict=True)]
    if y == "loss" and any(classify):
        axes.set_ylabel("loss (nats per text)" if all(classify) else "loss (nats)")
    elif y == "loss":
        bits = axes.secondary_yaxis("right", functions=(_to_bits, _to_nats))
        bits.set_ylabel("bits per token")
        axes.spines["right"].set_visible(True)
    write_picture(output, figure)


def _refuse_other_units(runs: Sequence[Path], all_metrics: Sequence[Metrics], y: YAxis, output: Path) -> None:
    """Raise RequestError for a run that has no `y`."""
    again = " ".join(["gpt plot", *(quote(str(run)) for run in runs), "-o", quote(str(output))])
    classify = [_is_classifier(run, metrics) for run, metrics in zip(runs, all_metrics, strict=True)]
    for run, metrics, classifies in zip(runs, all_metrics, classify, strict=True):
        if y == "bpb" and classifies:
            raise RequestError(f"{run} classifies texts: it has no bits per byte", hint=f"{again} --y loss")
        if y == "accuracy" and metrics and not classifies:
            other = "loss" if any(classify) else "bpb"
            raise RequestError(f"{run} predicts tokens: it has no accuracy", hint=f"{again} --y {other}")


def _draw_run(
    axes: Axes, run: Path, metrics: Metrics, name: str, index: int, x: XAxis, y: YAxis, *, alone: bool
) -> None:
    size = read_bytes_per_token(run) if x == "bytes" or y == "bpb" else 1.0
    config = _config_of(run)
    predicted = size if config is None else bytes_per_prediction(config, metrics, size)
    training = series(metrics, _TRAINING[y], x, size, predicted) if y in _TRAINING else _NO_CURVE
    validation = series(metrics, _VALIDATION[y], x, size) if y in _VALIDATION else _NO_CURVE
    if not len(training.x) and not len(validation.x):
        words = _WORDS.get(y, "losses")
        if is_checkpoint(run):
            raise RequestError(f"{run} is a checkpoint, and its run has the {words}", choices=run_around(run))
        if is_imported(run):
            raise RequestError(
                f"{run} was imported, not trained: it has no {words}", hint=f"gpt info {quote(str(run))}"
            )
        raise UserError(
            f"{run} has no {words} over {x} in its metrics.jsonl",
            kind="damaged run" if list_checkpoints(run) else "no checkpoint",
            path=run,
        )
    colour = COLOURS[index % len(COLOURS)]
    line, marker = _STYLES[index // len(COLOURS) % len(_STYLES)]
    suffix = "" if alone else f", {name}"
    if len(training.x):
        axes.plot(training.x, training.y, color=colour, alpha=0.3, linewidth=0.6)
        name_shown = f"training{suffix}" if y in _VALIDATION else _LABELS[y] if alone else name
        smoothed = training.y if y == "lr" else smooth(training.y)  # a schedule is no noise
        only = "." if len(training.x) == 1 else ""  # which is no line
        axes.plot(training.x, smoothed, line, marker=only, color=colour, linewidth=1.6, label=name_shown)
    if len(validation.x):
        best = validation.y.max() if y == "accuracy" else validation.y.min()
        legend = f"validation{suffix} (best {best:.3f})"
        shade = COLOURS[1] if alone else colour
        axes.plot(validation.x, validation.y, ":", marker=marker, markersize=4, color=shade, label=legend)


def _config_of(run: Path) -> Config | None:
    """The config of the run; None where it cannot be read, which no curve needs."""
    try:
        return load_config(run / CONFIG)
    except UserError:
        return None


def _is_classifier(run: Path, metrics: Metrics) -> bool:
    config = _config_of(run)
    return any("accuracy" in line for line in metrics) if config is None else config.task.kind == "classes"


def _draw_frame(axes: Axes, x: XAxis, y: YAxis, log_x: bool, log_y: bool) -> None:
    if log_x:
        axes.set_xscale("log", nonpositive="mask")  # step 0 has no place there
    if log_y:
        axes.set_yscale("log", nonpositive="mask")
    if x != "time":
        if not log_x:
            axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 10k, 2.5M
    if y == "throughput":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    if y in ("lr", "throughput") and not log_y:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(X_LABELS[x])
    axes.set_ylabel(_LABELS[y])
    add_grid(axes)
    if y in _VALIDATION or len(axes.get_lines()) > 2:
        axes.legend(frameon=False, fontsize="small")


def _to_bits(nats: npt.ArrayLike) -> Curve:
    return np.asarray(nats, dtype=np.float64) / math.log(2)


def _to_nats(bits: npt.ArrayLike) -> Curve:
    return np.asarray(bits, dtype=np.float64) * math.log(2)
