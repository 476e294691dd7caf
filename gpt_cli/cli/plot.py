"""`gpt plot`: the loss of runs as a picture."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gpt_cli.cli.output import note


def plot(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run directories. [default: the newest]", show_default=False),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="A .png, .svg or .pdf.")] = Path(
        "loss.png"
    ),
    x: Annotated[Literal["step", "tokens", "time"], typer.Option(help="What the loss is drawn over.")] = "step",
    log_x: Annotated[bool, typer.Option("--log-x", help="Draw the horizontal axis logarithmically.")] = False,
) -> None:
    """Draw the training and validation loss of one or more runs.

    Example: gpt plot runs/small runs/large -o loss.png --x time
    """
    from gpt_cli.report.plot import plot_runs
    from gpt_cli.run.directory import find_run

    plot_runs([find_run(run) for run in runs] if runs else [find_run(None)], output, x=x, log_x=log_x)
    note(f"wrote {output}")
