"""The result of a sweep as a plot of the effect of each key, and an HTML page with it."""

import base64
import math
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpt_cli.report.figure_io import COLOURS, add_grid, label, write_picture
from gpt_cli.report.html import render_page, write_page
from gpt_cli.report.sweep_text import UNITS, interval
from gpt_cli.search.sweep.sweep_result import Setting, SweepResult

PAGE, PICTURE = "report.html", "effects.png"
_COLUMNS = 3
_TOP_IQR = 4.0  # interquartile ranges from the upper quartile to the end of the axis, lest one loss flatten the rest


def write_sweep(result: SweepResult, home: Path) -> list[Path]:
    """Write the page and, if there is a loss to draw, the plot into `home`. Returns their paths."""
    picture = home / PICTURE
    drawn = draw_effects(result, picture)
    encoded = base64.b64encode(picture.read_bytes()).decode() if drawn else None
    source = None if encoded is None else Markup("data:image/png;base64,{}").format(encoded)
    page = render_page("sweep.html", None, result=result, picture=source, unit=UNITS[result.measure], interval=interval)
    write_page(home / PAGE, page)
    return [home / PAGE, *([picture] if drawn else [])]


def draw_effects(result: SweepResult, output: Path) -> bool:
    """Draw the loss of all runs over the values of each key. Returns False if there is nothing to draw."""
    axes = result.axes or [{"key": "seed", "values": []}]
    points = [(setting, loss) for setting in result.settings for loss in _losses(setting)]
    if not points:
        return False
    columns = min(_COLUMNS, len(axes))
    rows = math.ceil(len(axes) / columns)
    figure = Figure(figsize=(4.2 * columns + 0.6, 3.4 * rows + 0.3), dpi=150, layout="constrained")
    top = _top_limit([loss for _, loss in points])
    for index, axis in enumerate(axes):
        panel = figure.add_subplot(rows, columns, index + 1)
        _draw_axis(panel, axis, points, result)
        if top is not None:
            panel.set_ylim(top=top)
        if index % columns == 0:
            panel.set_ylabel(UNITS[result.measure])
    write_picture(output, figure)
    return True


def _losses(setting: Setting) -> list[float]:
    if setting.losses or setting.searched is None or setting.failed:
        return list(setting.losses.values())
    return [setting.searched]


def _top_limit(losses: list[float]) -> float | None:
    """The upper limit of the axis if some losses are far above the others, else None."""
    lower, upper = np.quantile(losses, (0.25, 0.75))
    top = float(upper + _TOP_IQR * max(upper - lower, 1e-3))
    return top if max(losses) > top else None


def _draw_axis(panel: Axes, axis: dict[str, Any], points: list[tuple[Setting, float]], result: SweepResult) -> None:
    key = axis["key"]
    texts = axis.get("values") or sorted({str(seed) for setting, _ in points for seed in setting.losses})
    is_number = all(_is_number(text) for text in texts) or "low" in axis
    positions = {}
    for setting, _ in points:
        text = setting.values.get(key, "")
        positions[text] = float(text) if is_number and text else float(texts.index(text)) if text in texts else 0.0
    x = [positions[setting.values.get(key, "")] for setting, _ in points]
    y = [loss for _, loss in points]
    panel.scatter(x, y, s=18, color=COLOURS[0], alpha=0.5, linewidths=0)
    is_grid = all("values" in axis_ for axis_ in result.axes)  # in a search the values of keys are correlated
    if is_grid and len(positions) > 1:
        ticks = sorted(set(x))
        means = [float(np.mean([b for a, b in zip(x, y, strict=True) if a == tick])) for tick in ticks]
        panel.plot(ticks, means, color=COLOURS[0], linewidth=1.4, label="mean")
    if result.best is not None and result.best.mean is not None:
        best = result.best.values.get(key, "")
        panel.scatter(
            [positions.get(best, 0.0)],
            [result.best.mean],
            marker="*",
            s=130,
            color=COLOURS[1],
            zorder=3,
            label="best setting",
        )
    if is_number and (axis.get("log") or (min(x) > 0 and max(x) / min(x) >= 8)):
        panel.set_xscale("log")
    if is_number and "values" in axis:
        panel.set_xticks([float(text) for text in texts], list(texts), rotation=30 if len(texts) > 4 else 0)
        panel.minorticks_off()
    elif not is_number:
        panel.set_xticks(range(len(texts)), [label(text) for text in texts])
        panel.margins(x=0.2)
    panel.set_xlabel(label(key))
    add_grid(panel)
    panel.legend(frameon=False, fontsize="small")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
