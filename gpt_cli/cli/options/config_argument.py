"""The config argument of a verb that needs none: a file or none, and changes to it."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.config import Config


def load_effective(file: Path, overrides: Sequence[str]) -> "Config":
    """The config `file` under `overrides`; notes what has no effect. Raises what `load_config` raises."""
    from gpt_cli.cli.options.ineffective_keys import note_without_effect
    from gpt_cli.config import load_config

    config = load_config(file, overrides)
    note_without_effect(config, overrides)
    return config


def file_first(verb: str, first: str, others: Sequence[str], *, missing: str = "CONFIG") -> tuple[str, list[str]]:
    """(the file, what changes its config) of the arguments of `gpt VERB FILE [section.key=value]...`, in any order.

    Raises RequestError where all of them are changes; `missing` is the file in the hint.
    """
    from gpt_cli.cli.options.train_request import is_override

    arguments = [first, *others]
    position = next((i for i, argument in enumerate(arguments) if not is_override(argument)), None)
    if position is None:
        changes = " ".join(map(quote, arguments))
        raise RequestError(f"{first} changes a config: which one?", hint=f"gpt {verb} {missing} {changes}")
    file = arguments.pop(position)
    return file, arguments


def config_or_defaults(arguments: Sequence[str], *, hint: str) -> "Config":
    """The config of the one file among `arguments`, else the defaults, with the overrides among them.

    Raises RequestError for a second file, with `hint`, and what `load_config` raises.
    """
    from gpt_cli.cli.options.ineffective_keys import note_without_effect
    from gpt_cli.cli.options.train_request import is_override
    from gpt_cli.config import parse_config

    overrides = [argument for argument in arguments if is_override(argument)]
    files = [argument for argument in arguments if argument not in overrides]
    if len(files) > 1:
        raise RequestError(f"give one config, not {len(files)}", hint=hint)
    if files:
        return load_effective(Path(files[0]), overrides)
    config = parse_config("", "the defaults", overrides)
    note_without_effect(config, overrides)
    return config
