"""`gpt diff`: how runs differ."""

from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.output import note, print_json
from gpt_cli.errors import RequestError


def diff(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Say how runs differ: in results, config, text and environment.

    What they have in common is left out. Of two runs, the last column tells by how much the second is better or worse
    in what can be.

    Example: gpt diff runs/small runs/large
    """
    from gpt_cli.report.difference import compare, render_differences, to_json
    from gpt_cli.report.record import read_records
    from gpt_cli.run.directory import find_run

    if len(runs) < 2:
        raise RequestError("a difference is between two runs or more", hint="gpt diff RUN RUN")
    records = read_records([find_run(run) for run in runs], note)
    differences = compare(records)
    if json:
        print_json(to_json(records, differences))
    else:
        print(render_differences(records, differences))
