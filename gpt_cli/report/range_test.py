"""Plot a learning-rate range test."""

from pathlib import Path

from gpt_cli.report.figure_io import COLOURS, add_grid, new_axes, write_picture
from gpt_cli.search.lr_range_test import RangeTest


def draw_range_test(test: RangeTest, output: Path) -> None:
    """Draw loss over learning rate into `output`, whose suffix is its format; the same test gives the same bytes."""
    figure, axes = new_axes(8, 4.8)
    axes.set_xscale("log")
    axes.plot(test.lr, test.loss, color=COLOURS[0], alpha=0.3, linewidth=0.8)
    axes.plot(test.lr, test.smooth, color=COLOURS[0], linewidth=1.6, label="training loss, smoothed")
    axes.axvline(test.config_lr, color="0.6", linestyle=":", label=f"the config's, {test.config_lr:g}")
    axes.axvline(test.proposed_lr, color=COLOURS[1], linestyle="--", label=f"proposed, {test.proposed_lr:g}")
    axes.set_xlabel(test.key)
    axes.set_ylabel(f"loss (nats per {test.unit})")
    add_grid(axes)
    axes.legend(frameon=False, fontsize="small")
    write_picture(output, figure)
