"""Series of a run's metrics: losses, learning rate, gradient norm, throughput.

The horizontal axis is steps, tokens, bytes of text or time; bytes compare runs with different tokenizers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

XAxis = Literal["step", "tokens", "bytes", "time"]
Measure = Literal["loss", "val_loss", "train_bpb", "bpb", "lr", "grad_norm", "throughput", "accuracy", "macro_f1"]
Curve = npt.NDArray[np.float64]
MetricsLine = Mapping[str, Any]
Metrics = Sequence[MetricsLine]

X_LABELS: dict[XAxis, str] = {
    "step": "step",
    "tokens": "training tokens",
    "bytes": "bytes of training text",
    "time": "training time (minutes)",
}
_MAX_VALUE = 1e300  # beyond it, the difference of two values may be infinite
_REACH_DIVISOR = 50  # a moving average reaches 1 / so much of the curve to either side


@dataclass(frozen=True)
class Series:
    """Values `y` over `x`; both (n,), in the order logged."""

    x: Curve
    y: Curve


def series(
    metrics: Metrics,
    measure: Measure,
    x: XAxis,
    bytes_per_token: float = 1.0,
    bytes_per_prediction: float | None = None,
) -> Series:
    """One measure of a run, from the lines of its metrics.jsonl; time is in minutes.

    `train_bpb` is the training loss in bits per byte, by `bytes_per_prediction` (None: `bytes_per_token`) of the
    training text. `throughput` is tokens per second between two lines of the log; evaluations do not count, samples and
    checkpoints do.
    """
    predicted = bytes_per_prediction or bytes_per_token
    points = _throughput(metrics) if measure == "throughput" else _logged(metrics, measure, predicted)
    key = "tokens" if x == "bytes" else x
    unit = {"time": 60.0, "bytes": 1 / bytes_per_token}.get(x, 1.0)
    array = np.array([(line[key], y) for line, y in points if key in line], dtype=np.float64).reshape(-1, 2)
    array = array[np.isfinite(array).all(axis=1)].clip(-_MAX_VALUE, _MAX_VALUE)
    return Series(array[:, 0] / unit, array[:, 1])


def smooth(values: Curve) -> Curve:
    """The moving average of a curve over a fiftieth of its length to either side."""
    return moving_average(values, len(values) // _REACH_DIVISOR)


def moving_average(values: Curve, reach: int) -> Curve:
    """The mean of each value and its neighbours up to `reach` on either side.

    The window is truncated at the end; at the start, where a loss falls steeply, it shrinks symmetrically, so that the
    average is not biased.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    reaches = np.minimum(reach, index)
    start, end = index - reaches, np.minimum(index + reaches + 1, len(values))
    average: Curve = (sums[end] - sums[start]) / (end - start)
    return average


def downsample_minmax(points: Series, limit: int) -> Series:
    """At most about `limit` points: the lowest and the highest of each group of neighbours, so that spikes remain."""
    if len(points.x) <= limit:
        return points
    groups = np.array_split(np.arange(len(points.x)), limit // 2)
    indices = sorted({int(group[pick(points.y[group])]) for group in groups for pick in (np.argmin, np.argmax)})
    return Series(points.x[indices], points.y[indices])


def _logged(metrics: Metrics, measure: Measure, bytes_per_prediction: float) -> list[tuple[MetricsLine, float]]:
    if measure == "train_bpb":
        scale = 1 / (math.log(2) * bytes_per_prediction)
        return [(line, line["loss"] * scale) for line in metrics if "loss" in line]
    return [(line, line[measure]) for line in metrics if measure in line]


def _throughput(metrics: Metrics) -> list[tuple[MetricsLine, float]]:
    lines = [line for line in metrics if {"time", "tokens"} <= line.keys()]
    return [
        (after, (after["tokens"] - before["tokens"]) / (after["time"] - before["time"]))
        for before, after in pairwise(lines)
        if after["tokens"] > before["tokens"] and after["time"] > before["time"]
    ]
