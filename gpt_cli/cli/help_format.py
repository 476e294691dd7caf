"""The layout of `--help`: sections for groups of options, and plain words for what an option takes."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

_OTHERS = "Options"
_PLAIN = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH"}
_TYPE = re.compile(r"<(?:list\[)?(int|float|str|path)(?: range)?\]?>")


class PanelCommand(TyperCommand):
    """A command whose `--help` lists arguments, then options by the `rich_help_panel` they name, the others last."""

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

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = PanelCommand, **settings: Any
    ) -> Callable[..., Any]:
        return super().command(name, cls=cls, **settings)
