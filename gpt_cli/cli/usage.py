"""Turn Typer's usage errors into ours, with suggestions for names used by other tools."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, get_args

import typer

from gpt_cli.errors import RequestError


def usage_error(error: typer.TyperException, arguments: Sequence[str]) -> RequestError:
    """The error for a command line that Typer refuses, with what may have been meant."""
    from gpt_cli.config.synonyms import VALUES, suggest

    context: Any = getattr(error, "ctx", None)  # Typer exports neither the class that has one, nor sets it always
    parameter = getattr(error, "param", None)
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    choices: list[str] = []
    if context is not None and hasattr(error, "possibilities"):  # an unknown option
        option: str = error.option_name  # type: ignore[attr-defined]
        message = f"no such option: {option}"
        choices = _options_like(context.command, option.lstrip("-"), arguments)
    elif parameter is not None and parameter.param_type_name == "option":
        option = max(parameter.opts, key=len)
        words = [word for word in get_args(parameter.type_descriptor.annotation) if isinstance(word, str)]
        choices = [f"{option} {word}" for word in suggest(_value_of(option.lstrip("-"), arguments), words, VALUES)]
    verb = [word for word in arguments[:1] if context is None and not word.startswith("-")]
    path = " ".join(["gpt", *verb]) if context is None else context.command_path
    hint = None if choices else f"{path} --help"
    return RequestError(message[:1].lower() + message[1:], choices=choices, hint=hint)


def unknown_command(path: str, name: str, known: Sequence[str]) -> RequestError:
    """The error for a `name` that is no command of `path`, such as `gpt runs`."""
    from gpt_cli.config.removed import REMOVED
    from gpt_cli.config.synonyms import COMMANDS, suggest

    if (removed := REMOVED.get(f"{path} {name}")) is not None:
        return RequestError(removed.sentence(f"{path} {name}"))
    meant = sorted(COMMANDS.get(name.lower().replace("-", "_"), []), key=lambda command: not command.startswith(path))
    close = [f"{path} {command}" for command in suggest(name, known)]
    hint = None if close else meant[0] if meant else f"{path} --help"
    return RequestError(f"no such command '{name}'", choices=close, hint=hint)


def takes_changes(command: Any) -> bool:
    """True if a command takes `section.key=value`."""
    return any("section.key=value" in (parameter.metavar or "") for parameter in getattr(command, "params", ()))


def _options_like(command: Any, name: str, arguments: Sequence[str]) -> list[str]:
    """The candidates for the unknown option `name`: one of the command's own, or a key of the config."""
    from gpt_cli.config.keys import fields, suggest_keys
    from gpt_cli.config.synonyms import KEYS, OTHER_UNITS, suggest

    options = {option.lstrip("-"): option for one in command.params for option in one.opts if option.startswith("-")}
    if meant := suggest(name, options, KEYS):
        return [options[option] for option in meant]
    if not takes_changes(command):
        return []
    keys = [key for key in suggest_keys((name,)) if key in fields()]
    values = [] if name.replace("-", "_") in OTHER_UNITS else [_value_of(name, arguments), "true"]
    return [next((f"{key}={value}" for value in values if _takes(key, value)), key) for key in keys]


def _takes(key: str, value: str) -> bool:
    """True if a config key takes the value."""
    from gpt_cli.config.load import parse_overrides

    try:
        return bool(value) and bool(parse_overrides([f"{key}={value}"]))
    except RequestError:
        return False


def _value_of(name: str, arguments: Sequence[str]) -> str:
    """The text after the option `name` on the command line; empty if there is none."""
    for argument, following in pairwise([*arguments, "--"]):
        option, equals, text = argument.lstrip("-").partition("=")
        if argument.startswith("-") and option == name:
            return text if equals or following.startswith("--") else following
    return ""


def called(arguments: Sequence[str], command: Any) -> Any:
    """The command that `arguments` call."""
    names = [argument for argument in arguments if not argument.startswith("-")]
    while names and (inner := getattr(command, "commands", {}).get(names[0])) is not None:
        command, names = inner, names[1:]
    return command


def options_of(command: Any) -> set[str]:
    return {option for parameter in getattr(command, "params", ()) for option in parameter.opts}


def without_removed_options(arguments: Sequence[str]) -> list[str]:
    """The command line without removed options. Raises RequestError for one in use."""
    from gpt_cli.config.removed import REMOVED, is_removed
    from gpt_cli.config.yaml_reader import resolve_scalar

    verb = " ".join(["gpt", *[word for word in arguments if not word.startswith("-")][:1]])
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*kept, word, *rest]
        option, equals, value = word.partition("=")
        if not equals and rest:
            value = rest[0]
        if is_removed(name := f"{verb} {option} {value}"):
            raise RequestError(REMOVED[name].sentence(name))
        if not is_removed(name := f"{verb} {option}"):
            kept.append(word)
            continue
        is_given = equals or rest
        if not (is_given and (REMOVED[name].is_off(value) or REMOVED[name].is_off(resolve_scalar(value)))):
            raise RequestError(REMOVED[name].sentence(name))
        rest = rest if equals else rest[1:]
    return kept
