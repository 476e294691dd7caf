"""The command line, one entry a line: every verb with its arguments and options."""

from collections.abc import Iterator
from typing import Any

import typer

from gpt_cli.cli.main import app
from tests.support.python_interface import type_text

OF_TYPER = ("--install-completion", "--show-completion")  # their help and type vary with Typer's version


def command_line_interface() -> list[str]:
    """A line for each verb, and for each of its arguments and options."""
    return sorted(line for path, command in every_command() for line in _lines(path, command))


def every_command() -> Iterator[tuple[str, Any]]:
    """("gpt data list", its command) for each verb and group, hidden ones included."""
    root: Any = typer.main.get_command(app)
    yield from _below(root, typer.Context(root, info_name="gpt"))


def _below(command: Any, context: typer.Context) -> Iterator[tuple[str, Any]]:
    yield context.command_path, command
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        _, inner, _ = command.resolve_command(context, [name])
        yield from _below(inner, typer.Context(inner, info_name=name, parent=context))


def _lines(path: str, command: Any) -> Iterator[str]:
    yield f"{path}: {'hidden, ' * command.hidden}{command.get_short_help_str(1000)}"
    number = 0
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            number += 1
            yield f"{path} argument {number}: {_facts(parameter)}"
        else:
            written = " / ".join(", ".join(names) for names in (parameter.opts, parameter.secondary_opts) if names)
            yield f"{path} {written}" + (f": {_facts(parameter)}" if written not in OF_TYPER else "")


def _facts(parameter: Any) -> str:
    default = parameter.default
    if default is not None and not isinstance(default, bool | int | float | str | list | tuple):
        default = str(default)  # a path, whose class depends on the system
    facts = {
        "metavar": parameter.metavar,
        "type": type_text(parameter.type_descriptor.annotation),
        "min": parameter.min,
        "max": parameter.max,
        "repeatable": (parameter.param_type_name == "option" and parameter.multiple) or None,
        "several": parameter.nargs != 1 or None,
        "required": parameter.required or None,
        "hidden": parameter.hidden or None,
    }
    given = {name: fact for name, fact in facts.items() if fact is not None}
    if not parameter.required:
        given["default"] = repr(default)
    words = [name if fact is True else f"{name}={fact}" for name, fact in given.items()]
    return f"{' '.join(words)}; {' '.join((parameter.help or '').split())}"
