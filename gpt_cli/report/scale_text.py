"""The scaling law of a ladder of runs, as text and as a plot."""

from pathlib import Path

import numpy as np

from gpt_cli.report.figure_io import COLOURS, add_grid, new_axes, write_picture
from gpt_cli.search.scaling.loss_law import LossLaw
from gpt_cli.search.scaling.run_scale import ScaleResult
from gpt_cli.terminal.table import render_table
from gpt_cli.terminal.words import format_duration, short_number

_TERMS = {"e": "limit of L", "alpha": "exponent of N", "beta": "exponent of D"}
_MAX_EPOCHS = 4.0  # epochs up to which repeated tokens are about as good as new ones


def render_scale(result: ScaleResult) -> str:
    """The fitted law, its error on the run held out, and a row of advice for each training time."""
    law, intervals = result.law, result.intervals
    terms = f"L = {law['e']:.3f} + {law['a']:.3g} / N^{law['alpha']:.3f} + {law['b']:.3g} / D^{law['beta']:.3f}"
    spans = [f"{_TERMS[name]} {low:.3f} to {high:.3f}" for name, (low, high) in intervals.items()]
    lines = [
        terms,
        f"90 % intervals: {', '.join(spans)}; what the law leaves: {result.noise:.4f}",
        *("", _held_out(result), ""),
    ]
    rows = [
        [
            format_duration(row.seconds), short_number(row.parameters),
            "-".join(map(short_number, row.parameters_interval)), short_number(row.tokens),
            f"{row.epochs:.1f}", f"{row.loss:.3f}", f"{row.loss_interval[0]:.3f}-{row.loss_interval[1]:.3f}",
        ]
        for row in result.advice
    ]  # fmt: skip
    header = ["time", "N", "90 %", "tokens", "epochs", "loss", "90 %"]
    lines.append(render_table(rows, header=header, right=range(len(header))))
    if any(row.epochs > _MAX_EPOCHS for row in result.advice):
        lines.append(
            f"The text has {result.train_tokens:,} tokens to train on. The law is of new ones: read more than"
            f" {_MAX_EPOCHS:.0f} times, it promises too much."
        )
    device = "Times are of this machine." if result.here else "Times are of a device that does --device-flops."
    return "\n".join([*lines, device, *result.failed])


def _held_out(result: ScaleResult) -> str:
    if result.held_out_error is None or result.held_out_interval is None:
        return "The run that was held out has no loss."
    held = next(point for point in result.points if point.held_out)
    low, high = result.held_out_interval
    return (
        f"Held out: {short_number(held.n)} parameters, {short_number(held.d)} tokens: loss {held.loss:.4f}, predicted"
        f" {held.fitted:.4f} ({low:.4f} to {high:.4f}), {result.held_out_error:+.4f}."
    )


def draw_scale(result: ScaleResult, output: Path) -> None:
    """Draw losses over tokens for each size, with the law's curves, into `output`."""
    law = LossLaw(**result.law)
    figure, axes = new_axes(7.5, 4.6)
    sizes = sorted({point.n for point in result.points})
    all_tokens = [point.d for point in result.points]
    d = np.exp(np.linspace(np.log(min(all_tokens)), np.log(max(all_tokens)), 100))
    for index, n in enumerate(sizes):
        points = [point for point in result.points if point.n == n]
        marker = "*" if points[0].held_out else "o"
        held_out = ", held out" if points[0].held_out else ""
        colour = COLOURS[index % len(COLOURS)]
        axes.scatter([p.d for p in points], [p.loss for p in points], color=colour, marker=marker, s=40, zorder=3)
        axes.plot(d, law.loss(n, d), color=colour, linewidth=1.2, label=f"{short_number(n)} parameters{held_out}")
    axes.set_xscale("log")
    axes.set_xlabel("tokens trained on")
    axes.set_ylabel("validation loss (nats per token)")
    add_grid(axes)
    axes.legend(frameon=False, fontsize="small")
    write_picture(output, figure)
