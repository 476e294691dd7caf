"""`gpt plot`: the curves of runs as a picture."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gpt_cli.cli.options.run_options import RunsArgument, RunsOption, find_many
from gpt_cli.cli.output import PictureOption, note


def plot(
    runs: RunsArgument = None,
    run_options: RunsOption = None,
    output: PictureOption = Path("loss.png"),
    y: Annotated[
        Literal["loss", "bpb", "lr", "grad_norm", "throughput", "accuracy"],
        typer.Option(help="The curve; bpb: bits per byte, which compare any two models; accuracy: of classifiers."),
    ] = "loss",
    x: Annotated[Literal["step", "tokens", "bytes", "time"], typer.Option(help="The horizontal axis.")] = "step",
    log_x: Annotated[bool, typer.Option("--log-x", help="Draw the horizontal axis logarithmically.")] = False,
    log_y: Annotated[bool, typer.Option("--log-y", help="Draw the vertical axis logarithmically.")] = False,
    width: Annotated[float, typer.Option(metavar="INCHES", help="3.4 suits a column of a paper.", min=2, max=40)] = 8,
) -> None:
    """Plot the training and validation loss of one or more runs, or another of their curves, for a paper.

    The same runs give the same bytes. `gpt report` makes a page of all the curves instead.

    Example: gpt plot runs/small runs/large -o bpb.pdf --y bpb --width 3.4
    """
    from gpt_cli.report.plot import plot_runs

    found = find_many(runs, run_options)
    plot_runs(found, output, x=x, y=y, log_x=log_x, log_y=log_y, width=width, note=note)
    note(f"wrote {output}")
