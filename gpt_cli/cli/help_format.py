"""The layout of `--help`: sections for groups of options, and plain words for what an option takes."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from gpt_cli.cli.usage import unknown_command
from gpt_cli.errors import RequestError

_OTHERS = "Options"
_PLAIN = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH"}
_TYPE = re.compile(r"<(?:list\[)?(int|float|str|path)(?: range)?\]?>")


def check_values(command: Any, ctx: Any, arguments: list[str]) -> None:
    """Raise RequestError for a text or a path given several times by one option, and for an empty path or argument.

    All but the last would be lost; of numbers and choices it counts, as aliases and scripts that add options to others
    expect. An empty path, which a script has from a variable that is not set, would be the current directory.
    """
    if ctx.resilient_parsing:  # of a line that is being completed
        return
    values, _, order = command.make_parser(ctx).parse_args(list(arguments))
    for option in order:
        is_text = isinstance(option, TyperOption) and option.type_descriptor.annotation in (str, Path)
        if is_text and not option.multiple and order.count(option) > 1:
            name = max(option.opts, key=len)
            once = f"give one of them: {name} {quote(str(values[option.name]))}"
            several = any("--prompts" in other.opts for other in command.params) and name == "--prompt"
            raise RequestError(f"{name} is given twice", hint="--prompts FILE has one a line" if several else once)
        value = values[option.name]
        given = value if isinstance(value, list | tuple) else [value]
        is_argument = option.param_type_name == "argument"
        if "" in given and (is_argument or option.type_descriptor.annotation in (Path, list[Path])):
            name = max(option.opts, key=len)
            if is_argument:
                name = option.metavar if option.metavar.isalpha() else "an argument"
            raise RequestError(f"{name} must not be empty")


class PanelGroup(TyperGroup):
    """A group of commands whose own options are given once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        check_values(self, ctx, args)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing and not args[0].startswith("-"):
            raise unknown_command(ctx.command_path, args[0], list(self.commands))
        return super().resolve_command(ctx, args)


class PanelCommand(TyperCommand):
    """A command whose `--help` lists arguments, then options by the `rich_help_panel` they name, the others last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        check_values(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for name, records in help_sections(self, ctx).items():
            with formatter.section(name):
                formatter.write_dl(records, col_max=26)


def help_sections(command: Any, ctx: Any) -> dict[str, list[Sequence[str]]]:
    """{heading: [(how a parameter is written, what it means), ...]} in the order in which help shows them."""
    groups: dict[str, list[Sequence[str]]] = {"Arguments": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        written, meaning = record
        if parameter.param_type_name == "argument":
            groups["Arguments"].append((written.rpartition(" <")[0] or written, meaning))
        else:
            plain = _TYPE.sub(lambda match: _PLAIN[match[1]], written)
            groups.setdefault(getattr(parameter, "rich_help_panel", None) or _OTHERS, []).append((plain, meaning))
    if keys := getattr(command.callback, "keys", None):
        groups["Keys, of a hundred that the config has"] = [*keys.items()]
    others = groups.pop(_OTHERS, [])
    return {name: records for name, records in {**groups, _OTHERS: others}.items() if records}


class App(typer.Typer):
    """A Typer application whose commands have the help of `PanelCommand`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=PanelGroup, **settings)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = PanelCommand, **settings: Any
    ) -> Callable[..., Any]:
        return super().command(name, cls=cls, **settings)
