"""Turn Typer's usage errors into ours, with suggestions for names used by other tools."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer

from gpt_cli.errors import RequestError


def usage_error(error: typer.TyperException, context: Any, arguments: Sequence[str]) -> RequestError:
    """The error for `arguments` that Typer refuses, with what may have been meant."""
    from gpt_cli.config.synonyms import VALUES, suggest

    message = error.format_message().replace("Value error, ", "").rstrip(".")
    choices: list[str] = []
    parameter = getattr(error, "param", None)
    if hasattr(error, "possibilities"):  # an unknown option
        option: str = error.option_name  # type: ignore[attr-defined]
        message = f"no such option: {option}"
        choices = _options_like(option, context.command, arguments)
    elif parameter is not None and parameter.param_type_name == "option":
        option = max(parameter.opts, key=len)
        words = suggest(_value_of(option, arguments), parameter.type_descriptor.choices or (), VALUES)
        choices = [f"{option} {word}" for word in words]
    hint = None if choices else f"{context.command_path} --help"
    return RequestError(message[:1].lower() + message[1:], choices=choices, hint=hint)


def unknown_command(path: str, name: str, known: Sequence[str]) -> RequestError:
    """The error for a `name` that is no command of `path`, such as `gpt runs`."""
    from gpt_cli.config.removed import REMOVED
    from gpt_cli.config.synonyms import COMMANDS, suggest

    if (removed := REMOVED.get(f"{path} {name}")) is not None:
        return RequestError(removed.sentence(f"{path} {name}"))
    close = [f"{path} {command}" for command in suggest(name, known)]
    meant = sorted(COMMANDS.get(name.lower().replace("-", "_"), []), key=lambda command: not command.startswith(path))
    hint = None if close else [*meant, f"{path} --help"][0]
    return RequestError(f"no such command '{name}'", choices=close, hint=hint)


def takes_changes(command: Any) -> bool:
    """True if a command takes `section.key=value`."""
    return any("section.key=value" in (parameter.metavar or "") for parameter in command.params)


def _options_like(option: str, command: Any, arguments: Sequence[str]) -> list[str]:
    """The candidates for an unknown option: one of the command's own, or a key of the config."""
    from gpt_cli.config.keys import fields, suggest_keys
    from gpt_cli.config.synonyms import KEYS, OTHER_UNITS, suggest

    name = option.lstrip("-")
    options = {known.lstrip("-"): known for one in command.params for known in one.opts if known.startswith("-")}
    if meant := suggest(name, options, KEYS):
        return [options[known] for known in meant]
    if not takes_changes(command):
        return []
    values = [] if name.replace("-", "_") in OTHER_UNITS else [_value_of(option, arguments), "true"]
    keys = [key for key in suggest_keys((name,)) if key in fields()]
    return [next((f"{key}={value}" for value in values if _takes(key, value)), key) for key in keys]


def _takes(key: str, value: str) -> bool:
    """True if a config key takes the value."""
    from gpt_cli.config.load import parse_overrides

    try:
        return bool(value) and bool(parse_overrides([f"{key}={value}"]))
    except RequestError:
        return False


def _value_of(option: str, arguments: Sequence[str]) -> str:
    """The text after `option` on the command line; empty if there is none."""
    for word, following in pairwise([*arguments, "--"]):
        name, equals, text = word.partition("=")
        if name == option:
            return text if equals or following.startswith("--") else following
    return ""
