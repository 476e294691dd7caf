"""The run of a verb: RUN, or `--run RUN`, which means the same; without either the newest one."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from gpt_cli.cli.options.complete import complete_checkpoint
from gpt_cli.errors import RequestError

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

_OUTPUTS = (".png", ".svg", ".pdf", ".html", ".htm")


def one_run(argument: Path | None, option: Path | None) -> Path | None:
    """The run that was named in one way or the other. Raises RequestError for both."""
    if argument is not None and option is not None:
        raise RequestError(
            f"the run is named twice: {argument}, and --run {option}",
            hint=f"name one of them: --run {quote(str(option))}",
        )
    return option if argument is None else argument


def find_one(argument: Path | None, option: Path | None, *, text_option: str | None = None) -> Path:
    """The run that was named, else the newest. Raises what `find_run` raises.

    `text_option`: how this verb is given a text, which somebody may have put in the place of a run.
    """
    from gpt_cli.run.find_run import find_run

    try:
        return find_run(one_run(argument, option))
    except RequestError as error:
        may_be_text = error.kind == "no run" and text_option == "--prompt" and len(getattr(argument, "parts", ())) == 1
        if text_option is not None and (error.kind == "text" or may_be_text):
            error.hint = f"{text_option} {quote(str(argument))}"
        raise


def find_many(arguments: Sequence[Path] | None, options: Sequence[Path] | None, *, writes: bool = False) -> list[Path]:
    """The runs that were named, those of `--run` last; without any the newest. Raises as `find_run` does.

    `writes`: the verb writes the file of its option -o, which somebody may have put in the place of a run.
    """
    from gpt_cli.run.find_run import find_run

    named = [*(arguments or ()), *(options or ())]
    for path in named:
        if writes and path.suffix.lower() in _OUTPUTS and not path.exists():
            raise RequestError(f"there is no run at {path}", hint=f"the file to write is -o {quote(str(path))}")
    return [find_run(run) for run in named] if named else [find_run(None)]
