"""Help for a verb with many options: a section for each group of them."""

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

_OTHERS = "Options"


class GroupedCommand(TyperCommand):
    """A command whose `--help` lists options by the `rich_help_panel` they name, in the order of the first of each."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections; what names no group comes last."""
        groups: dict[str, list[Sequence[str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or _OTHERS, []).append(record)
        others = groups.pop(_OTHERS, [])
        for name, records in {**groups, _OTHERS: others}.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records, col_max=26)
