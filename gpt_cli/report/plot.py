"""The loss of runs as a picture, drawn from their metrics.jsonl."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from gpt_cli.errors import UserError
from gpt_cli.report.picture import COLOURS, check_output, label, write_picture
from gpt_cli.run.checkpoint import is_checkpoint
from gpt_cli.run.log import read_metrics

XAxis = Literal["step", "tokens", "time"]
Values = npt.NDArray[np.float64]
Metrics = Sequence[Mapping[str, Any]]

_LABELS: dict[XAxis, str] = {"step": "step", "tokens": "training tokens", "time": "training time (minutes)"}
_STYLES = (("-", "o"), ("--", "s"), ("-.", "^"))  # line and marker, when there are more runs than colours
_REACHES = 50  # in a curve: how far a moving average looks to either side


@dataclass(frozen=True)
class Curve:
    """Losses in nats per token over `x`; both (n,), in the order logged."""

    x: Values
    loss: Values


def plot_runs(runs: Sequence[Path], output: Path, *, x: XAxis = "step", log_x: bool = False) -> None:
    """Draw training loss (each value, and a moving average) and validation loss of `runs` into `output`.

    The suffix of `output` is its format: .png, .svg or .pdf; the same metrics give the same bytes. Raises
    RequestError for an output that cannot be, UserError for a run without metrics.
    """
    check_output(output, hint="gpt plot RUN -o loss.png")
    figure = Figure(figsize=(8, 4.8), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for index, (run, name) in enumerate(zip(runs, _names(runs), strict=True)):
        _draw_run(axes, run, name, index, x, alone=len(runs) == 1)
    _draw_frame(axes, x, log_x)
    write_picture(output, figure)


def curve(metrics: Metrics, measure: Literal["loss", "val_loss"], x: XAxis) -> Curve:
    """The training or validation loss in the lines of a metrics.jsonl; time is in minutes."""
    points = [(line[x], line[measure]) for line in metrics if measure in line and x in line]
    array = np.array(points, dtype=np.float64).reshape(-1, 2)
    return Curve(array[:, 0] / (60 if x == "time" else 1), array[:, 1])


def moving_average(values: Values, reach: int) -> Values:
    """The mean of each value and its neighbours up to `reach` on either side.

    At the end there are fewer to the right. At the beginning, where a loss falls steeply, the reach shrinks to
    both sides alike, so that the fall is not bent.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    reaches = np.minimum(reach, index)
    start, end = index - reaches, np.minimum(index + reaches + 1, len(values))
    average: Values = (sums[end] - sums[start]) / (end - start)
    return average


def _draw_run(axes: Axes, run: Path, name: str, index: int, x: XAxis, *, alone: bool) -> None:
    metrics = read_metrics(run)
    training, validation = curve(metrics, "loss", x), curve(metrics, "val_loss", x)
    if not len(training.x) and not len(validation.x):
        if is_checkpoint(run):
            raise UserError(f"{run} is a checkpoint, and its run has the losses", hint="give its run")
        raise UserError(f"{run} has no losses over {x} in its metrics.jsonl yet", hint="train it first")
    colour = COLOURS[index % len(COLOURS)]
    line, marker = _STYLES[index // len(COLOURS) % len(_STYLES)]
    of_run = "" if alone else f", {name}"
    if len(training.x):
        smooth = moving_average(training.loss, len(training.x) // _REACHES)
        axes.plot(training.x, training.loss, color=colour, alpha=0.3, linewidth=0.6)
        axes.plot(training.x, smooth, line, color=colour, linewidth=1.6, label=f"training{of_run}")
    if len(validation.x):
        best = f"validation{of_run} (best {validation.loss.min():.3f})"
        shade = COLOURS[1] if alone else colour
        axes.plot(validation.x, validation.loss, ":", marker=marker, markersize=4, color=shade, label=best)


def _draw_frame(axes: Axes, x: XAxis, log_x: bool) -> None:
    if log_x:
        axes.set_xscale("log", nonpositive="mask")  # step 0 has no place there
    if x != "time":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 10k, 2.5M
    axes.set_xlabel(_LABELS[x])
    axes.set_ylabel("loss (nats per token)")
    bits = axes.secondary_yaxis("right", functions=(_to_bits, _to_nats))
    bits.set_ylabel("bits per token")
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines["top"].set_visible(False)
    axes.legend(frameon=False, fontsize="small")


def _to_bits(nats: npt.ArrayLike) -> Values:
    return np.asarray(nats, dtype=np.float64) / math.log(2)


def _to_nats(bits: npt.ArrayLike) -> Values:
    return np.asarray(bits, dtype=np.float64) * math.log(2)


def _names(runs: Sequence[Path]) -> list[str]:
    """What the legend calls each run: its directory's name, or the path where names would be equal."""
    names = [run.resolve().name for run in runs]
    shown = names if len(set(names)) == len(names) else [str(run) for run in runs]
    return [label(name) for name in shown]
