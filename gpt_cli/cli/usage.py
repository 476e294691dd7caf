"""Turn Typer's usage errors into ours, with suggestions for names used by other tools."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer

from gpt_cli.config.synonyms import COMMANDS, KEYS, suggest
from gpt_cli.errors import RequestError

_NO_VALUE = "VALUE"  # for the one that the command line lacks


def usage_error(error: typer.TyperException, arguments: Sequence[str]) -> RequestError:
    """The error for a command line that Typer refuses, with what may have been meant."""
    context = getattr(error, "ctx", None)  # Typer exports neither the class that has one, nor sets it always
    path = "gpt" if context is None else context.command_path
    if context is not None and hasattr(error, "possibilities"):  # an unknown option
        option: str = error.option_name  # type: ignore[attr-defined]
        choices = _options_like(context.command, option.lstrip("-"), arguments)
        return RequestError(f"no such option: {option}", choices=choices, hint=None if choices else f"{path} --help")
    message = error.format_message().rstrip(".")
    return RequestError(message[:1].lower() + message[1:], hint=f"{path} --help")


def unknown_command(path: str, name: str, known: Sequence[str]) -> RequestError:
    """The error for a `name` that is no command of `path`, such as `gpt runs`."""
    meant = COMMANDS.get(name.lower().replace("-", "_"), [])
    close = [f"{path} {command}" for command in suggest(name, known)]
    hint = meant[0] if meant and name.lower() not in known else None if close else f"{path} --help"
    return RequestError(f"no such command '{name}'", choices=close, hint=hint)


def takes_changes(command: Any) -> bool:
    """True if a command takes `section.key=value`."""
    return any("section.key=value" in (parameter.metavar or "") for parameter in command.params)


def _options_like(command: Any, name: str, arguments: Sequence[str]) -> list[str]:
    """What may have been meant by the option `name`: one of the command's own, or a key of the config."""
    options = [option.lstrip("-") for one in command.params for option in one.opts if option.startswith("--")]
    if meant := suggest(name, options, KEYS):
        return [f"--{option}" for option in meant]
    if not takes_changes(command):
        return []
    from gpt_cli.config.keys import fields, suggest_keys

    keys = [key for key in suggest_keys((name,)) if key in fields()]
    return [f"{key}={_value_of(name, arguments, bool in (fields()[key].annotation,))}" for key in keys]


def _value_of(name: str, arguments: Sequence[str], is_switch: bool) -> str:
    """The text after the option `name` on the command line."""
    for argument, following in pairwise([*arguments, "--"]):
        option, equals, text = argument.lstrip("-").partition("=")
        if argument.startswith("-") and option == name and not equals:
            text = "" if following.startswith("--") or (is_switch and following not in ("true", "false")) else following
        if argument.startswith("-") and option == name:
            return text or ("true" if is_switch else _NO_VALUE)
    return _NO_VALUE


def options_of(arguments: Sequence[str], command: Any) -> set[str]:
    """The options of the command that `arguments` call."""
    names = [argument for argument in arguments if not argument.startswith("-")]
    while names and (inner := getattr(command, "commands", {}).get(names[0])) is not None:
        command, names = inner, names[1:]
    return {option for parameter in getattr(command, "params", ()) for option in parameter.opts}
