"""The run of a verb: RUN, or `--run RUN`, which means the same; without either the newest one."""

import re
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


def find_one(
    argument: Path | None,
    option: Path | None,
    *,
    text_option: str | None = None,
    text: str | None = None,
    check: bool = True,
) -> Path:
    """The run that was named, else the newest.

    `text_option`: how this verb is given a text, which somebody may have put in the place of a run. `text`: what was
    given so, of which the run may be the second word. `check`, and what it raises, as for `find_run`.
    """
    from gpt_cli.run.find_run import find_run

    try:
        return find_run(one_run(argument, option), check=check)
    except RequestError as error:
        if error.choices or error.kind == "foreign model" or argument is None or text_option is None:
            raise
        if (key := re.fullmatch(r"([a-z]+)\.([a-z_]+)=(.*)", str(argument))) is not None:
            error.hint = "keys of a config are for gpt train: leave it out"
            if key[1] == "sample" and text_option == "--prompt":
                error.hint = f"an option is written with dashes: --{key[2].replace('_', '-')} {quote(key[3])}"
            raise
        if argument.suffix.lower() in (".yaml", ".yml"):
            error.hint = "a config is no run: name one that was trained with it, such as those that `gpt runs` lists"
            raise
        is_model = argument.suffix.lower() in (".safetensors", ".gguf", ".pt", ".bin")
        may_be_text = text_option == "--prompt" and len(argument.parts) == 1 and not argument.exists()
        if not is_model and (may_be_text or argument.is_file()):
            words = f"{text} {argument}" if may_be_text and text is not None else str(argument)
            error.hint = f"a text is given by {text_option} {quote(words)}"
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
