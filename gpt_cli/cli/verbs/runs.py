"""`gpt runs`: list runs, or remove some."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from gpt_cli.cli.help_format import App
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import RequestError
from gpt_cli.files.kinds import is_checkpoint
from gpt_cli.files.locations import require_directory
from gpt_cli.report.runs import list_runs, render_runs
from gpt_cli.run.checkpoint import checkpoint_step, list_checkpoints
from gpt_cli.run.find_run import find_run, run_around
from gpt_cli.run.trash import size_of, trash_run
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.words import format_size, plural

app = App()


@app.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Where they are, if not in runs/.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the runs in runs/, with loss, size, steps, date and the keys in which their configs differ; or remove one.

    The run that was saved last comes first. The loss is the lowest on the run's validation text; bits per byte
    compare whatever the tokenizers are. Of a config, the values are shown that differ from the most common ones.

    Example: gpt runs
    """
    if context.invoked_subcommand is not None:
        return
    place = folder or Path("runs")
    require_directory(place, missing=folder is None)
    lines = list_runs(place, note)
    if json:
        print_json({"runs": [asdict(line) for line in lines]})
    elif lines:
        print(render_runs(lines))
    else:
        note(f"there are no runs in {place}; train one: gpt train TEXT")


@app.command("rm")
def remove(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Move runs to the trash, a folder beside them, after asking.

    A run in which something trains stays. What was moved can be moved back.

    Example: gpt runs rm runs/book
    """
    found: dict[Path, Path] = {}
    for path in paths:  # all of them, before the first is moved
        found[Path(os.path.abspath(path))] = run = path if path.is_dir() and list_checkpoints(path) else find_run(path)
        if is_checkpoint(run):
            raise RequestError(f"{run} is not a run directory", choices=run_around(run))
    for place, path in found.items():
        checkpoints = list_checkpoints(path)
        steps = f"{plural(checkpoint_step(checkpoints[0]), 'step')}, " if checkpoints else ""
        if not yes and not _confirmed(f"move {path} ({steps}{format_size(size_of(path))}) to the trash?"):
            note(f"{path} stays")
            continue
        moved = Path(os.path.abspath(trash_run(path)))
        # Into the folder, where a run of that name refuses it: mv would put it inside that.
        back = f"{quote(str(place.parent))}/" if moved.name == place.name else quote(str(place))
        note(f"moved to {moved}; to have it back: mv {quote(str(moved))} {back}")


def _confirmed(question: str) -> bool:
    """Ask at the terminal; True for yes. Raises RequestError where nobody does."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise RequestError("nobody can be asked: standard input is not a terminal (--yes does not ask)")
    print(escape_control_chars(f"{question} [y/N] "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
