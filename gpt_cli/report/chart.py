"""Line charts as SVG; equal series give equal text.

Colours and dashes come from the page's style sheet by class (`c0` ... of a run, `faint`, `dots`, `level`), so one
drawing serves light mode, dark mode and print. The scales of the axes are in attributes, from which the page's script
computes the values under the pointer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from gpt_cli.report.series import Series, downsample_minmax
from gpt_cli.terminal.escape import escape_control_chars

WIDTH, HEIGHT = 460, 270  # SVG units, about pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 12, 40
_NAME_WIDTH = 52  # width reserved at the right for the names of levels
_SPACING = 12  # between these names
_START_SHARE = 0.04  # of the horizontal axis: values there do not extend a "cut" vertical axis
_MAX_POINTS = 300  # of a line
_MAX_OVERSHOOT = 50.0  # axis lengths by which a point may lie outside
_LOG_RATIO = 50  # a ratio of largest to smallest value from which the vertical axis is logarithmic
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Line:
    """A curve or a series of dots; `colour` is the number of a class of the style sheet."""

    name: str
    points: Series
    colour: int
    kind: Literal["line", "faint", "dots"] = "line"


@dataclass(frozen=True)
class ReferenceLine:
    """A horizontal line with a name, such as a baseline."""

    name: str
    y: float


@dataclass(frozen=True)
class Axis:
    """Maps values from `low` to `high` to pixels from `pixels[0]` to `pixels[1]`."""

    low: float
    high: float
    pixels: tuple[float, float]
    log: bool = False

    def place(self, value: float) -> float:
        """The pixel of a value; on a logarithmic axis values below `low` are at its end."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        share = (self._scaled(value) - low) / (high - low)
        return self.pixels[0] + min(_MAX_OVERSHOOT, max(-_MAX_OVERSHOOT, share)) * (self.pixels[1] - self.pixels[0])

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.log else value


def draw_chart(
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    levels: Sequence[ReferenceLine] = (),
    scale: Literal["zero", "log", "cut"] = "cut",
    whole: bool = False,
) -> Markup:
    """The chart as an <svg> element; a short paragraph if no line has a point.

    `scale` of the vertical axis: `zero` begins at 0; `log` and `cut` are logarithmic if positive values span a factor
    of 50; `cut` ignores the start of the curves, so that the initial fall of a loss does not flatten the rest.
    `whole`: only integers are labelled on the horizontal axis.
    """
    drawn = [line for line in lines if len(line.points.x)]
    if not drawn:
        return Markup('<p class="empty">nothing logged</p>')
    right = WIDTH - (_NAME_WIDTH if levels else _RIGHT)
    x = _horizontal_scale([float(v) for line in drawn for v in line.points.x], (_LEFT, right))
    levels_y = [level.y for level in levels]
    for line in drawn:
        values = line.points.y
        if scale == "cut" and len(after_start := values[line.points.x >= x.low + _START_SHARE * (x.high - x.low)]):
            values = after_start
        levels_y += [float(v) for v in values]
    y = _vertical_scale(levels_y, (HEIGHT - _BOTTOM, _TOP), scale)
    curves = Markup("").join(_curve(line, x, y) for line in drawn)
    frame = (_LEFT - 4, _TOP - 4, right - _LEFT + 8, HEIGHT - _BOTTOM - _TOP + 8)
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{} over {}" data-x="{}" data-y="{}" data-unit="{}">{}{}{}'
        '<svg x="{}" y="{}" width="{}" height="{}" viewBox="{}">{}</svg><g class="under" hidden></g></svg>'
    ).format(
        *(WIDTH, HEIGHT, y_label, x_label, _scale(x), _scale(y), x_label),
        *(_vertical_axis(y, y_label, right), _horizontal_axis(x, x_label, whole), _levels(levels, y, right)),
        *(*frame, "{} {} {} {}".format(*frame), curves),
    )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """At most about 7 powers of ten from `low` to `high`; with 2 and 5 times them if there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first) / 6))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    values = [factor * 10.0**power for power in range(first, last + 1, stride) for factor in factors]
    return [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def format_tick(value: float) -> str:
    """A number on an axis: 0.005, 2.5M, 1e-7."""
    if value == 0:
        return "0"
    for size, prefix in _PREFIXES:
        if size <= abs(value) < 1000 * size:
            return f"{value / size:.4g}{prefix}"
    return f"{value:.4g}" if 1e-4 <= abs(value) < 1e15 else f"{value:.0e}".replace("e-0", "e-").replace("e+", "e")


def _horizontal_scale(values: Sequence[float], pixels: tuple[float, float]) -> Axis:
    low, high = min(0.0, *values), max(values)
    return Axis(low, high if high > low else low + 1.0, pixels)


def _vertical_scale(values: Sequence[float], pixels: tuple[float, float], scale: str) -> Axis:
    low, high = min(values), max(values)
    if scale != "zero" and low > 0 and high / low >= _LOG_RATIO:
        return Axis(low / 1.15, high * 1.15, pixels, log=True)
    if scale == "zero":
        low, high = min(0.0, low), max(0.0, high)
    margin = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    return Axis(low if scale == "zero" and low == 0 else low - margin, high + margin, pixels)


def _vertical_axis(axis: Axis, label: str, right: float) -> Markup:
    marks = log_ticks(axis.low, axis.high) if axis.log else ticks(axis.low, axis.high)
    grid = Markup("").join(
        Markup('<path class="grid" d="M{} {:.1f}H{}"/><text x="{}" y="{:.1f}" class="end">{}</text>').format(
            _LEFT, y, right, _LEFT - 6, y + 4, format_tick(value)
        )
        for value in marks
        for y in (axis.place(value),)
    )
    name = label + (", logarithmic" if axis.log else "")
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    return grid + Markup('<text class="label" transform="translate(11 {:.1f}) rotate(-90)">{}</text>').format(
        middle, name
    )


def _horizontal_axis(axis: Axis, label: str, whole: bool) -> Markup:
    bottom, (left, right) = HEIGHT - _BOTTOM, axis.pixels
    marks = Markup("").join(
        Markup('<path class="tick" d="M{:.1f} {}v4"/><text x="{:.1f}" y="{}" class="middle">{}</text>').format(
            x, bottom, x, bottom + 17, format_tick(value)
        )
        for value in ticks(axis.low, axis.high)
        if not whole or value == round(value)
        for x in (axis.place(value),)
    )
    line = Markup('<path class="axis" d="M{} {}H{}"/>').format(left, bottom, right)
    name = Markup('<text class="label" x="{:.1f}" y="{}">{}</text>').format((left + right) / 2, HEIGHT - 5, label)
    return line + marks + name


def _levels(levels: Sequence[ReferenceLine], axis: Axis, right: float) -> Markup:
    """Dashed lines with their names to the right, moved up where they would overlap."""
    parts = []
    name_y = math.inf  # baseline of the last name, from below
    for level in sorted(levels, key=lambda level: level.y):
        y = axis.place(level.y)
        name_y = min(name_y - _SPACING, y + 4)
        parts.append(
            Markup('<path class="level" d="M{} {:.1f}H{}"/><text class="level" x="{}" y="{:.1f}">{}</text>').format(
                _LEFT, y, right, right + 4, name_y, level.name
            )
        )
    return Markup("").join(parts)


def _curve(line: Line, x: Axis, y: Axis) -> Markup:
    points = downsample_minmax(line.points, _MAX_POINTS)
    pixels = [(x.place(float(a)), y.place(float(b))) for a, b in zip(points.x, points.y, strict=True)]
    path = " ".join(f"{a:.2f},{b:.2f}" for a, b in pixels)
    name = escape(escape_control_chars(line.name))
    if line.kind == "dots":
        dots = Markup("").join(Markup('<circle cx="{:.2f}" cy="{:.2f}" r="3"/>').format(*pixel) for pixel in pixels)
        return Markup('<g class="dots c{}"><polyline points="{}" data-name="{}"/>{}</g>').format(
            line.colour, path, name, dots
        )
    if len(pixels) == 1:
        return Markup('<circle class="only c{}" cx="{:.2f}" cy="{:.2f}" r="3"/>').format(line.colour, *pixels[0])
    data_name = Markup("") if line.kind == "faint" else Markup(' data-name="{}"').format(name)
    return Markup('<polyline class="{} c{}" points="{}"{}/>').format(line.kind, line.colour, path, data_name)


def _scale(axis: Axis) -> str:
    return f"{axis.low!r} {axis.high!r} {axis.pixels[0]} {axis.pixels[1]} {int(axis.log)}"
