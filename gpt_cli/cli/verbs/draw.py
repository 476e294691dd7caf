"""`gpt draw`: pictures of what a config means, from the code that does it."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gpt_cli.cli.options.config_argument import ConfigOrDefaultsArgument, config_or_defaults
from gpt_cli.cli.output import note


def draw(
    what: Annotated[
        Literal["scaling", "mask", "positions", "activations", "muon", "schedule", "filters"],
        typer.Argument(metavar="WHAT", help="scaling, mask, positions, activations, muon, schedule or filters."),
    ],
    arguments: ConfigOrDefaultsArgument = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A .png, .svg or .pdf. [default: WHAT.png]")
    ] = None,
) -> None:
    """Draw the effect of a part of a config, with the code that trains and samples.

    scaling: why scores are divided by the root of the width of a head; mask: which keys a query sees; positions:
    sinusoids and rotations; activations: those of the MLP; muon: the effect of orthogonalization on an update;
    schedule: the learning rate over the run; filters: what temperature, top-k, top-p and min-p leave. No run is
    needed, and the same config gives the same bytes.

    Example: gpt draw mask model.window=6 -o mask.png
    """
    from gpt_cli.report.explain_plots import draw_part
    from gpt_cli.report.figure_io import check_output

    path = output or Path(f"{what}.png")
    check_output(path)
    draw_part(what, config_or_defaults(arguments or ()), path)
    note(f"wrote {path}")
