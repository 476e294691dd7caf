"""The config of a verb: its arguments, files and overrides told apart, and the config that they are."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpt_cli.cli.options.complete import complete_change
from gpt_cli.cli.output import note
from gpt_cli.config import Config, load_config, parse_config
from gpt_cli.config.conditions import missing_condition, recipe_has_effect
from gpt_cli.config.keys import dotted_keys, fields, get_key, sections
from gpt_cli.config.load import enclosing_run, merge_layers, read_config_file
from gpt_cli.config.section import parse_duration
from gpt_cli.errors import UsageError
from gpt_cli.run.run_files import run_of

_FOLLOWING = ("data.split", "sample.prefix", "sample.suffix", "sample.stop")  # data.format, whatever they are set to

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="A config file.", show_default=False)]


def changes_argument(metavar: str, text: str) -> Any:
    """Return an argument that takes `section.key=value`, which a shell completes."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, autocompletion=complete_change)


OverridesArgument = Annotated[list[str] | None, changes_argument("section.key=value", "Config keys to override.")]
ConfigOrDefaultsArgument = Annotated[
    list[str] | None,
    changes_argument("CONFIG|section.key=value", "A config file, and keys to override. [default: no file]"),
]
JobsOption = Annotated[int | None, typer.Option(min=1, max=1024, help="Runs at once; default: one per core or GPU.")]


def is_override(argument: str) -> bool:
    """True if it is `section.key=value`; a file may be called like one, but not like one of a key that there is."""
    if not re.match(r"[a-z_]\w*(\.[a-z_]\w*)*=", argument, re.ASCII | re.IGNORECASE):
        return False
    key = argument.partition("=")[0]
    return key in fields() or key in sections() or not os.path.lexists(argument)


def file_first(verb: str, first: str, others: Sequence[str], *, missing: str = "CONFIG") -> tuple[str, list[str]]:
    """Return (the file, the changes to its config) of `gpt VERB FILE [section.key=value]...`, in any order.

    Raises RequestError where there is no file; `missing` is its name in the message.
    """
    arguments = [first, *others]
    file = next((argument for argument in arguments if not is_override(argument)), None)
    if file is None:
        raise UsageError(f"gpt {verb} needs a {missing} that {first} changes")
    arguments.remove(file)
    return file, arguments


def load_effective(file: Path, overrides: Sequence[str]) -> Config:
    """Return the config `file` under `overrides`; note what has no effect. Raises what `load_config` raises."""
    config = load_config(file, overrides)
    note_without_effect(config, overrides)
    return config


def config_or_defaults(arguments: Sequence[str]) -> Config:
    """Return the config of the one file among `arguments`, else the defaults, under the changes among them.

    Raises RequestError for a second file, and what `load_config` raises.
    """
    overrides = [argument for argument in arguments if is_override(argument)]
    files = [argument for argument in arguments if argument not in overrides]
    if len(files) > 1:
        raise UsageError(f"give one config, not {len(files)}")
    if files:
        return load_effective(Path(files[0]), overrides)
    config = parse_config("", "the defaults", overrides)
    note_without_effect(config, overrides)
    return config


def note_without_effect(config: Config, overrides: Sequence[str], file: Path | None = None) -> None:
    """Note each key that has no effect in `config`, of those that `overrides` and the config `file` set.

    The config of a run holds every key, and is left alone.
    """
    of_run = file is None or enclosing_run(file) is not None or run_of(config) is not None
    text = "" if file is None or of_run else read_config_file(file)
    written = dotted_keys(merge_layers(text, str(file), ()).values)
    changes = merge_layers("", "the overrides", overrides)
    asked = {key: changes.value(tuple(key.split("."))) for key in dotted_keys(changes.values)}
    for key, field in fields().items():
        is_changed = key in written | asked.keys() and get_key(config, key) != field.default
        if is_changed and (needed := missing_condition(config, key)) is not None:
            note(f"{key} has no effect here: it needs {needed}")
        elif key in _FOLLOWING and key in asked and asked[key] != get_key(config, key):
            note(f"{key} has no effect here: it follows from data.format and data.documents")
    if "recipe" in asked and not recipe_has_effect(config):
        note("recipe has no effect here: the config sets all of its keys")


def seconds_of(option: str, text: str) -> float:
    """Return the seconds in `text`, such as 90s, 30m or 1h30m, of `option`. Raises UsageError for anything else."""
    if (seconds := parse_duration(text)) is None:
        raise UsageError(f"{option} must be a time such as 90s, 30m or 1h30m, not {text!r}")
    return float(seconds)
