"""The run of a verb: RUN, or `--run RUN`, which means the same; without either the newest one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.complete import complete_checkpoint
from gpt_cli.cli.output import note, refuse_several
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.find_run import find_run
from gpt_cli.run.open_checkpoint import Task, open_checkpoint
from gpt_cli.run.overfitting import note_better_checkpoint

RunArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN", help="A run or checkpoint. [default: the newest run]", autocompletion=complete_checkpoint
    ),
]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", metavar="RUN", help="The same as RUN.", autocompletion=complete_checkpoint),
]
RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="RUN", help="Run directories. [default: the newest]", show_default=False),
]
RunsOption = Annotated[
    list[Path] | None,
    typer.Option("--run", metavar="RUN", help="The same as RUN. May be given several times."),
]


def one_run(argument: Path | None, option: Path | None) -> Path | None:
    """The run that was named in one way or the other. Raises RequestError for both."""
    refuse_several({"RUN": argument is not None, "--run": option is not None})
    return option if argument is None else argument


def find_one(argument: Path | None, option: Path | None) -> Path:
    """The run that was named, else the newest. Raises as `find_run` does."""
    return find_run(one_run(argument, option))


def find_checkpoint(argument: Path | None, option: Path | None, task: Task = "language") -> tuple[Path, Checkpoint]:
    """The run that was named, else the newest, and its checkpoint. Notes damaged checkpoints and a better one."""
    path = find_one(argument, option)
    saved = open_checkpoint(path, note, task)
    note_better_checkpoint(path, saved.step, note)
    return path, saved


def find_many(arguments: Sequence[Path] | None, options: Sequence[Path] | None) -> list[Path]:
    """The runs that were named, those of `--run` last; without any the newest. Raises as `find_run` does."""
    return [find_run(run) for run in [*(arguments or ()), *(options or ())]] or [find_run(None)]
