"""`gpt config`: see what a config says, start one, and teach an editor its keys."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from gpt_cli.cli.help_format import App
from gpt_cli.cli.options.complete import complete_change
from gpt_cli.cli.output import note, print_json, write_text
from gpt_cli.errors import RequestError
from gpt_cli.files.kinds import CONFIG, kind_of, refuse_unless
from gpt_cli.files.os_errors import translate_os_errors

VALUE_WIDTH = 40  # a longer value does not push the other origins aside

app = App(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def config(context: typer.Context) -> None:
    """Show what a config says, start a new one, or print the schema."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE|RUN", help="A config file, or a run.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="section.key=value", help="Changes to the config file.", autocompletion=complete_change),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with each key's meaning.")] = False,
) -> None:
    """Print every key, its value and where that is from.

    A value is from the defaults, a line of the file, or an override.

    Example: gpt config show configs/quickstart.yaml model.n_layer=8
    """
    from gpt_cli.cli.options.config_argument import file_first, load_effective
    from gpt_cli.config import explain, to_yaml_scalar

    name, overrides = file_first("config show", str(file), overrides or [], missing="FILE")
    file = Path(name)
    if kind_of(file) == "run":
        file = file / CONFIG
    rows = explain(load_effective(file, overrides), file, overrides)
    if json:
        fields = ("value", "origin", "description")
        print_json({row.key: {field: getattr(row, field) for field in fields} for row in rows})
        return
    key_width = max(len(row.key) for row in rows)
    values = [to_yaml_scalar(row.value) for row in rows]
    value_width = min(max(map(len, values)), VALUE_WIDTH)
    for row, value in zip(rows, values, strict=True):
        write_text(f"{row.key:<{key_width}}  {value:<{value_width}}  {row.origin}\n")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a config, for editors.

    They complete and check YAML by it, for instance after the comment
    `# yaml-language-server: $schema=gpt.schema.json` on top of a config.

    Example: gpt config schema > gpt.schema.json
    """
    from json import dumps

    from gpt_cli.config import json_schema

    print(dumps(json_schema(), indent=2))


@app.command()
def init(
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="A text file, folder, glob or token store.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="section.key=value",
            help="What is to be in the config.",
            show_default=False,
            autocompletion=complete_change,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write; - prints. [default: config.yaml, or named after TEXT]",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")] = False,
) -> None:
    """Write a config, fitted to TEXT or with everything explained.

    With TEXT, the config suits that text and this machine, as `gpt train TEXT` would have it. Without, it has
    every key with its meaning, and its default unless another value is given.

    Example: gpt config init book.txt data.encoding=latin-1
    """
    from gpt_cli.cli.options.config_argument import file_first
    from gpt_cli.cli.options.fit_config import run_name
    from gpt_cli.cli.options.train_request import is_override
    from gpt_cli.cli.options.train_source import TEXTS
    from gpt_cli.corpus.sources import refuse_overwriting
    from gpt_cli.files.locations import require_writable

    arguments = [*([] if text is None else [text]), *(overrides or [])]
    if all(map(is_override, arguments)):
        text, overrides = None, arguments
    else:
        text, overrides = file_first("config init", arguments[0], arguments[1:], missing="TEXT")
    if text is not None:
        refuse_unless(TEXTS, text, "text")
    if others := [word for word in overrides or [] if "=" not in word]:
        hint = (
            f"fit one to all of them: gpt config init {quote(str(text))} data.source=[{','.join([str(text), *others])}]"
        )
        raise RequestError(f"one TEXT at a time: {others[0]} is a second one", hint=hint)

    path = output or Path("config.yaml" if text is None else f"{run_name(text)}.yaml")
    printed = str(path) == "-"
    if text is not None and output is not None and not printed:
        refuse_overwriting(output, [text], "-o")
    with translate_os_errors("write", path):
        stands = not printed and path.exists() and not path.is_dir()
    if stands and not force:
        raise RequestError(f"{path} exists already", hint="name another file with -o, or replace it with --force")
    if not printed:
        require_writable(path)
    content = _starter(overrides) if text is None else _fitted(text, overrides)
    if printed:
        write_text(content)
        return
    from gpt_cli.files import replace_file

    replace_file(path, content.encode())
    note(f"wrote {path}; train it with: gpt train --config {quote(str(path))}")


def _starter(overrides: list[str]) -> str:
    from gpt_cli.cli.options.config_argument import config_or_defaults
    from gpt_cli.config import annotate_config, comment

    but = f", but for {' '.join(overrides)}" if overrides else ""
    meaning = f"Every key with its meaning and its default{but}. A key that is left out has its default, too."
    heading = comment([meaning])
    return "\n".join([*heading, "", annotate_config(config_or_defaults(overrides, hint=""))])


def _fitted(source: str, overrides: list[str]) -> str:
    from gpt_cli.cli.options.data_options import refuse_twice
    from gpt_cli.cli.options.fit_config import fit_to_this_machine
    from gpt_cli.cli.options.ineffective_keys import note_without_effect
    from gpt_cli.config import comment, dump_config, parse_config
    from gpt_cli.config.keys import replace_keys
    from gpt_cli.config.load import parse_overrides
    from gpt_cli.corpus.hub import pin_sources

    values = parse_overrides(overrides)
    for key in ("train.budget", "train.init_from"):
        if values.get(key) is not None:
            command = ["gpt train", quote(source), *map(quote, overrides)]
            raise RequestError(
                f"{key} decides on more than a config fitted to a text: `gpt train` chooses all of it together",
                hint=f"{' '.join(command)}; the config is then that of the run",
            )
    values = {"data.source": source, **values}  # an override may name more texts
    refuse_twice(values["data.source"])
    pinned = pin_sources(values, note)
    fitted, reasons = fit_to_this_machine({**values, **pinned}, "runs/text")
    heading = comment([f"Fitted to {', '.join(fitted.data.sources)} and the machine it was written on.", *reasons])
    # Without run_dir the run gets the name of the file, whatever that will be.
    content = dump_config(fitted.model_copy(update={"run_dir": None}), full=False)
    changed = replace_keys(parse_config(content, "the fitted config", overrides), pinned)
    note_without_effect(changed, overrides)
    return "\n".join([*heading, "", dump_config(changed, full=False)])
