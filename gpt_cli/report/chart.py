"""A line chart as SVG, drawn by arithmetic alone: no fonts to find, equal series give equal text.

Colours and dashes come from the page's style sheet by class (`c0` ... of a run, `faint`, `dots`, `level`), so that
one drawing serves light, dark and print. Points keep their data's scale in attributes, from which the page's script
reads values under the pointer; without it, nothing is lost but that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from gpt_cli.report.series import Series, downsample_minmax
from gpt_cli.terminal.escape import escape_control_chars

WIDTH, HEIGHT = 460, 270  # units of the drawing, about pixels on a laptop
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 12, 40
_NAMES = 52  # room at the right for the names of levels
_SPACING = 12  # between these names
_BEGINNING = 0.04  # of the horizontal axis: what stands there alone may be cut off at the top
_MOST_POINTS = 300  # of a line
_FAR = 50.0  # heights of the drawing: no point stands farther off
_LOG_FROM = 50  # a ratio of largest to smallest value from which the vertical axis is logarithmic
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Line:
    """A curve, or a row of dots, in the colour number `colour`."""

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
        """The pixel of a value; one that a logarithm cannot have stands at the low end."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        share = (self._scaled(value) - low) / (high - low)
        return self.pixels[0] + min(_FAR, max(-_FAR, share)) * (self.pixels[1] - self.pixels[0])

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
    """The chart as an <svg> element; a short remark in its place where no line has a point.

    The vertical axis begins at `zero`; or is a `log` one where positive values differ by a factor of 50; or is `cut`
    at the top, so that the fall from the very beginning of a loss does not flatten all that follows.
    `whole`: there is nothing between the whole numbers of the horizontal axis.
    """
    drawn = [line for line in lines if len(line.points.x)]
    if not drawn:
        return Markup('<p class="empty">nothing logged</p>')
    right = WIDTH - (_NAMES if levels else _RIGHT)
    x = _horizontal_scale([float(v) for line in drawn for v in line.points.x], (_LEFT, right))
    heights = [level.y for level in levels]
    for line in drawn:
        kept = line.points.y
        if scale == "cut" and len(later := kept[line.points.x >= x.low + _BEGINNING * (x.high - x.low)]):
            kept = later
        heights += [float(v) for v in kept]
    y = _vertical_scale(heights, (HEIGHT - _BOTTOM, _TOP), scale)
    curves = Markup("").join(_curve(line, x, y) for line in drawn)
    inside = (_LEFT - 4, _TOP - 4, right - _LEFT + 8, HEIGHT - _BOTTOM - _TOP + 8)
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{} over {}" data-x="{}" data-y="{}" data-unit="{}">{}{}{}'
        '<svg x="{}" y="{}" width="{}" height="{}" viewBox="{}">{}</svg><g class="under" hidden></g></svg>'
    ).format(
        *(WIDTH, HEIGHT, y_label, x_label, _scale(x), _scale(y), x_label),
        *(_vertical_axis(y, y_label, right), _horizontal_axis(x, x_label, whole), _levels(levels, y, right)),
        *(*inside, "{} {} {} {}".format(*inside), curves),
    )


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`, not too many; with 2 and 5 between them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    apart = max(1, math.ceil((last - first) / 6))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    found = [factor * 10.0**power for power in range(first, last + 1, apart) for factor in factors]
    return [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


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
    if scale != "zero" and low > 0 and high / low >= _LOG_FROM:
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
    """Dashed lines with their names to the right, which keep their distance."""
    parts = []
    free = math.inf  # the lowest place that is still free, from below
    for level in sorted(levels, key=lambda level: level.y):
        y = axis.place(level.y)
        free = min(free - _SPACING, y + 4)
        parts.append(
            Markup('<path class="level" d="M{} {:.1f}H{}"/><text class="level" x="{}" y="{:.1f}">{}</text>').format(
                _LEFT, y, right, right + 4, free, level.name
            )
        )
    return Markup("").join(parts)


def _curve(line: Line, x: Axis, y: Axis) -> Markup:
    points = downsample_minmax(line.points, _MOST_POINTS)
    places = [(x.place(float(a)), y.place(float(b))) for a, b in zip(points.x, points.y, strict=True)]
    name = escape(escape_control_chars(line.name))
    if line.kind == "dots":
        dots = Markup("").join(Markup('<circle cx="{:.2f}" cy="{:.2f}" r="3"/>').format(*place) for place in places)
        path = " ".join(f"{a:.2f},{b:.2f}" for a, b in places)
        return Markup('<g class="dots c{}"><polyline points="{}" data-name="{}"/>{}</g>').format(
            line.colour, path, name, dots
        )
    if len(places) == 1:
        return Markup('<circle class="only c{}" cx="{:.2f}" cy="{:.2f}" r="3"/>').format(line.colour, *places[0])
    told = Markup("") if line.kind == "faint" else Markup(' data-name="{}"').format(name)
    path = " ".join(f"{a:.2f},{b:.2f}" for a, b in places)
    return Markup('<polyline class="{} c{}" points="{}"{}/>').format(line.kind, line.colour, path, told)


def _scale(axis: Axis) -> str:
    return f"{axis.low!r} {axis.high!r} {axis.pixels[0]} {axis.pixels[1]} {int(axis.log)}"
