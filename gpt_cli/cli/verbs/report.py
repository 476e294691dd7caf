"""`gpt report`: runs as a page."""

from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.run_options import RunsArgument, RunsOption, find_many
from gpt_cli.cli.output import PageOption, note


def report(
    runs: RunsArgument = None,
    run_options: RunsOption = None,
    output: PageOption = Path("report.html"),
    baselines: Annotated[
        bool, typer.Option(help="Read the text of each run again, to compare with n-gram models and compressors.")
    ] = True,
) -> None:
    """Write an HTML report on one or more runs: one file that needs no network and no script.

    Corpus, model, results and the course of training: curves, samples, config, environment, events. Several runs
    stand side by side, with their differences.

    Example: gpt report runs/small runs/large -o report.html
    """
    from gpt_cli.report.run_report import write_report

    write_report(find_many(runs, run_options), output, baselines=baselines, note=note)
    note(f"wrote {output}")
