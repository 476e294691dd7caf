"""The config argument of a verb that needs none: a file or none, and changes to it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.config import Config


def config_or_defaults(arguments: Sequence[str], *, hint: str) -> "Config":
    """The config of the one file among `arguments`, else the defaults, with the overrides among them.

    Raises RequestError for a second file, with `hint`, and what `load_config` raises.
    """
    from gpt_cli.cli.options.train_request import is_override
    from gpt_cli.config import load_config, parse_config

    overrides = [argument for argument in arguments if is_override(argument)]
    files = [argument for argument in arguments if argument not in overrides]
    if len(files) > 1:
        raise RequestError(f"give one config, not {len(files)}", hint=hint)
    return load_config(Path(files[0]), overrides) if files else parse_config("", "the defaults", overrides)
