"""`gpt runs`: the runs there are, and one less."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from gpt_cli.cli.help_format import App
from gpt_cli.cli.output import JsonOption, note, print_json
from gpt_cli.errors import ExitCode, RequestError
from gpt_cli.files.kinds import RUN
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.words import plural

app = App(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Where they are, if not in runs/.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the runs in runs/, with loss, size, steps, date and what sets each config apart; or remove one.

    The run that was saved last comes first. The loss is the lowest on the run's validation text; bits per byte
    compare whatever the tokenizers are. Of a config, the values are shown that differ from the most common ones.

    Example: gpt runs
    """
    if context.invoked_subcommand is not None:
        return
    from gpt_cli.files.locations import require_directory
    from gpt_cli.report.runs import list_runs, render_runs
    from gpt_cli.run.find_run import is_run

    place = Path("runs") if folder is None else folder
    require_directory(place, missing=folder is None)
    lines = list_runs(place, note)
    if json:
        print_json({"runs": [asdict(line) for line in lines]})
    elif lines:
        print(render_runs(lines))
    elif is_run(str(place)):
        note(f"{place} is a run, not a folder of runs: gpt info {quote(str(place))}")
    elif (inside := next(iter(sorted(place.glob(f"*/*/{RUN}"))), None)) is not None:
        folder = inside.parent.parent
        note(f"there are no runs in {place} itself, but in {folder}: gpt runs --dir {quote(str(folder))}")
    else:
        note(f"there are no runs in {place}; train one: gpt train TEXT")


@app.command("rm")
def remove(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Move runs to the trash, a folder beside them, after asking.

    A run in which something trains stays. What was moved can be moved back.

    Example: gpt runs rm runs/book
    """
    from gpt_cli.files.kinds import is_checkpoint
    from gpt_cli.run.checkpoint import checkpoint_step, list_checkpoints
    from gpt_cli.run.find_run import run_around
    from gpt_cli.run.trash import lasting_path, size_of, trash_run
    from gpt_cli.terminal.words import format_size

    runs = list({os.path.abspath(path): _find(path) for path in paths}.values())
    for path in runs:  # all of them, before the first is moved
        if is_checkpoint(path):
            raise RequestError(f"{path} is not a run directory", choices=run_around(path))
    for path in runs:
        checkpoints = list_checkpoints(path)
        steps = f"{plural(checkpoint_step(checkpoints[0]), 'step')}, " if checkpoints else ""
        if not yes and not _confirmed(f"move {path} ({steps}{format_size(size_of(path))}) to the trash?"):
            note(f"{path} stays")
            continue
        place = lasting_path(path)
        moved = trash_run(path)
        # Into the folder, where a run of that name refuses it: mv would put it inside that.
        back = f"{_operand(place.parent)}/" if moved.name == place.name else _operand(place)
        note(f"moved to {moved}; to have it back: mv {_operand(moved)} {back}")
    return ExitCode.DONE


def _operand(path: Path) -> str:
    """`path` as a command takes it, also where it begins with a dash."""
    return quote(f"./{path}" if str(path).startswith("-") else str(path))


def _find(path: Path) -> Path:
    """The run at `path`, or what is left of one: its checkpoints. Raises RequestError where there is neither."""
    from gpt_cli.run.checkpoint import list_checkpoints
    from gpt_cli.run.find_run import find_run

    if path.is_dir() and list_checkpoints(path):
        return path
    try:
        return find_run(path)
    except RequestError as error:
        if not error.choices:
            error.kind = "no run"
        raise


def _confirmed(question: str) -> bool:
    """Ask at the terminal; True for yes. Raises RequestError where nobody does."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise RequestError("nobody can be asked: standard input is not a terminal", hint="--yes does not ask")
    print(escape_control_chars(f"{question} [y/N] "), end="", file=sys.stderr, flush=True)
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
