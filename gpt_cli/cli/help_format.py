"""Commands and groups of Typer with our errors and our layout of `--help`."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gpt_cli.cli.hints import add_hint
from gpt_cli.cli.usage import takes_changes, unknown_command, usage_error
from gpt_cli.errors import UserError

_OTHERS = "Options"
_PLAIN = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH"}
_TYPE = re.compile(r"<(?:list\[)?(int|float|str|path)(?: range)?\]?>")


class _Errors:
    """The errors of a command line and of the work, with the hints that suit the command."""

    def parse_args(self: Any, ctx: Any, args: list[str]) -> Any:
        given = list(args)
        try:
            self.refuse_empty(ctx, given)
            return super().parse_args(ctx, args)  # type: ignore[misc]
        except typer.TyperException as error:
            from gpt_cli.config.removed import without_removed_options

            if getattr(error, "option_name", None) == "--debug":  # an option of `gpt`, which may stand anywhere
                os.environ["GPT_DEBUG"] = "1"
                given.remove("--debug")
                return self.parse_args(ctx, given)
            if (kept := without_removed_options(ctx.command_path, given)) != given:
                return self.parse_args(ctx, kept)
            raise usage_error(error, ctx, given) from error

    def refuse_empty(self: Any, ctx: Any, args: list[str]) -> None:
        """Refuse an empty path or argument, which a script has from a variable that is not set."""
        values, _, given = self.make_parser(ctx).parse_args(list(args))
        for parameter in () if ctx.resilient_parsing else given:
            is_argument = parameter.param_type_name == "argument"
            name = f"'{parameter.metavar}'" if is_argument else max(parameter.opts, key=len)
            words = values[parameter.name] if parameter.multiple or parameter.nargs != 1 else [values[parameter.name]]
            if "" in (words or ()) and (is_argument or parameter.type_descriptor.annotation in (Path, list[Path])):
                ctx.fail(f"{name} must not be empty")

    def invoke(self: Any, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        except UserError as error:
            options = {option for parameter in self.params for option in parameter.opts}
            add_hint(error, options, takes_keys=takes_changes(self), command=ctx.command_path)
            raise


class PanelGroup(_Errors, TyperGroup):
    """A group of commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise unknown_command(ctx.command_path, args[0], list(self.commands))
        return super().resolve_command(ctx, args)


class PanelCommand(_Errors, TyperCommand):
    """A command whose `--help` lists arguments, then options by the `rich_help_panel` they name, the others last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for name, records in help_sections(self, ctx).items():
            with formatter.section(name):
                formatter.write_dl(records, col_max=26)


def help_sections(command: Any, ctx: Any) -> dict[str, list[Sequence[str]]]:
    """{heading: [(how a parameter is written, what it means), ...]} in the order in which help shows them."""
    groups: dict[str, list[Sequence[str]]] = {"Arguments": []}
    for parameter in command.get_params(ctx):
        written, meaning = parameter.get_help_record(ctx) or ("", "")
        if parameter.param_type_name == "argument":
            groups["Arguments"].append((written.rpartition(" <")[0] or written, meaning))
        elif written:
            plain = _TYPE.sub(lambda match: _PLAIN[match[1]], written)
            groups.setdefault(getattr(parameter, "rich_help_panel", None) or _OTHERS, []).append((plain, meaning))
    groups["Common config keys"] = [*getattr(command.callback, "keys", {}).items()]
    others = groups.pop(_OTHERS, [])
    return {name: records for name, records in {**groups, _OTHERS: others}.items() if records}


class App(typer.Typer):
    """A Typer application whose commands have the help of `PanelCommand`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": PanelGroup, "add_completion": False, "rich_markup_mode": None, **settings})

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = PanelCommand, **settings: Any
    ) -> Callable[..., Any]:
        return super().command(name, cls=cls, **settings)
