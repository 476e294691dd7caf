"""`gpt diff`: the differences of runs."""

from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.run_options import RunsOption, find_many
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import UsageError


def diff(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Run directories.", show_default=False)
    ] = None,
    run_options: RunsOption = None,
    json: JsonOption = False,
) -> None:
    """Show how runs differ: in results, config, text and environment.

    What they have in common is left out. Of two runs, the last column is the change from the first to the second, for
    figures that can be better or worse.

    Example: gpt diff runs/small runs/large
    """
    from gpt_cli.report.run_diff import compare, render_differences, to_json
    from gpt_cli.report.run_record import read_records

    if len([*(runs or ()), *(run_options or ())]) < 2:
        raise UsageError("give two runs or more to compare")
    records = read_records(find_many(runs, run_options), note)
    differences = compare(records)
    print_json(to_json(records, differences)) if json else print(render_differences(records, differences))
