"""`gpt config`: show, create or validate a config."""

import json as json_format
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from gpt_cli.cli.help_format import App
from gpt_cli.cli.options.config_argument import (
    OverridesArgument,
    config_or_defaults,
    file_first,
    is_override,
    load_effective,
    note_without_effect,
)
from gpt_cli.cli.options.data_options import refuse_twice
from gpt_cli.cli.options.run_name import run_name
from gpt_cli.cli.options.train_request import FITTED
from gpt_cli.cli.output import note, print_json, write_text
from gpt_cli.config import annotate_config, comment, dump_config, explain, json_schema, parse_config, to_yaml_scalar
from gpt_cli.config.keys import replace_keys
from gpt_cli.config.load import parse_overrides
from gpt_cli.corpus.hub import pin_sources
from gpt_cli.corpus.prepare import check_paths
from gpt_cli.corpus.sources import refuse_overwriting
from gpt_cli.errors import RequestError, UsageError
from gpt_cli.files import replace_file
from gpt_cli.files.kinds import CONFIG, kind_of, refuse_unless
from gpt_cli.files.locations import require_writable
from gpt_cli.files.os_errors import translate_os_errors

VALUE_WIDTH = 40  # a longer value does not push the other origins aside

app = App()


@app.callback(invoke_without_command=True)
def config(context: typer.Context) -> None:
    """Show, create or validate a config."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE|RUN", help="A config file, or a run.", show_default=False)],
    overrides: OverridesArgument = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with each key's meaning.")] = False,
) -> None:
    """Print every key, its value and its origin: the defaults, a line of the file, or an override.

    Example: gpt config show configs/quickstart.yaml model.n_layer=8
    """
    name, overrides = file_first("config show", str(file), overrides or [], missing="FILE")
    file = Path(name, CONFIG) if kind_of(name) == "run" else Path(name)
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
    print(json_format.dumps(json_schema(), indent=2))


@app.command()
def init(
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="A text file, folder, glob or token store.", show_default=False),
    ] = None,
    overrides: OverridesArgument = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="- prints. [default: config.yaml, or named after TEXT]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a config: fitted to TEXT, or every key with its meaning.

    With TEXT, the config suits that text and this machine, as `gpt train TEXT` would choose it. Without, it has every
    key with its meaning and its default, or the value that is given.

    Example: gpt config init book.txt data.encoding=latin-1
    """
    changes = [*([] if text is None else [text]), *(overrides or [])]
    if all(map(is_override, changes)):
        text = None
    else:
        text, changes = file_first("config init", changes[0], changes[1:], missing="TEXT")
        refuse_unless(FITTED, text, "text")
    if other := next((word for word in changes if not is_override(word)), None):
        raise UsageError(f"one TEXT at a time: {other} is a second one; data.source=[A,B] fits one to several")
    path = output or Path("config.yaml" if text is None else f"{run_name(text)}.yaml")
    is_printed = str(path) == "-"
    if not is_printed:
        if text is not None and output is not None:
            refuse_overwriting(output, [text], "-o")
        with translate_os_errors("write", path):
            stands = path.exists() and not path.is_dir()
        if stands and not force:
            hint = "--force replaces it" if kind_of(path) == "config" else None
            raise RequestError(f"{path} exists already", hint=hint)
        require_writable(path)
    content = _starter(changes) if text is None else _fitted(text, changes)
    if is_printed:
        write_text(content)
        return
    replace_file(path, content.encode())
    note(f"wrote {path}; train it with: gpt train --config {quote(str(path))}")


def _starter(overrides: list[str]) -> str:
    but = f", but for {' '.join(overrides)}" if overrides else ""
    meaning = f"Every key with its meaning and its default{but}. A key that is left out has its default, too."
    return "\n".join([*comment([meaning]), "", annotate_config(config_or_defaults(overrides))])


def _fitted(source: str, overrides: list[str]) -> str:
    values = parse_overrides(overrides)
    if wider := [key for key in ("train.budget", "train.init_from") if values.get(key) is not None]:
        raise RequestError(
            f"{wider[0]} chooses more than a config fitted to a text: give it to `gpt train`", keys=wider
        )
    values = {"data.source": source, **values}  # an override may name more texts
    refuse_twice(values["data.source"])
    pinned = pin_sources(values, note)
    check_paths(values["data.source"])  # sooner than torch is loaded
    from gpt_cli.search.auto_config import fit_to_this_machine

    fitted, reasons = fit_to_this_machine({**values, **pinned}, "runs/text")
    heading = comment([f"Fitted to {', '.join(fitted.data.sources)} and the machine it was written on.", *reasons])
    # Without run_dir the run gets the name of the file, whatever that will be.
    content = dump_config(fitted.model_copy(update={"run_dir": None}), full=False)
    changed = replace_keys(parse_config(content, "the fitted config", overrides), pinned)
    note_without_effect(changed, overrides)
    return "\n".join([*heading, "", dump_config(changed, full=False)])
