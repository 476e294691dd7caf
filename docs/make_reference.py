"""The reference pages of the documentation, from the schema and the verbs.

    python -m docs.make_reference docs/reference      or: make reference

Nothing on these pages is written by hand, so nothing on them can fall behind; a test compares what is committed with
what this writes.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

import typer

from gpt_cli.cli.help_format import help_sections
from gpt_cli.cli.main import app
from gpt_cli.config.dump import to_yaml_scalar
from gpt_cli.config.keys import accepted_types, description, fields, get_key, list_type, schema_of, sections
from gpt_cli.config.schema import Config
from gpt_cli.errors import join_or
from gpt_cli.files import make_directory, replace_file
from gpt_cli.literals import INT32_MAX
from gpt_cli.run.resume import may_change

_NOTE = "<!-- Written by `make reference`. Change the schema or the command, not this page. -->"
_TYPES = {"integer": "whole number", "number": "number", "string": "text"}
_WIDTH = 120


def write_reference(folder: Path) -> list[Path]:
    """Write both pages into `folder`; their paths."""
    make_directory(folder)
    pages = {folder / "config.md": config_page(), folder / "commands.md": commands_page()}
    for path, text in pages.items():
        replace_file(path, text.encode())
    return list(pages)


def config_page() -> str:
    """Every key of a config: what it accepts, its default, what it means."""
    lines = [
        "# Configuration reference",
        "",
        _NOTE,
        "",
        "Every key of a config, in the order of a run. A key that is left out has its default, so an empty file is a"
        " config. Any key can be given on the command line, too: `gpt train --config FILE section.key=value`."
        " `gpt config show FILE` prints a config's values and where each comes from, `gpt config init` writes one in"
        " which everything is explained, and `gpt config schema` prints the JSON Schema for editors.",
        "",
        "A key marked ↻ may change when a run goes on; a change of any other is refused, with both values. Whole"
        f" numbers end at {INT32_MAX:,} where nothing else is said.",
    ]
    default = Config()
    for section, keys in groupby(fields(), lambda key: key.rpartition(".")[0]):
        if section:
            lines += ["", f"## {section}", "", description(sections()[section])]
        rows = [(_marked(key), values(schema_of(key)), _default(get_key(default, key)), _meaning(key)) for key in keys]
        lines += ["", *_table(("key", "takes", "default", "meaning"), rows)]
    return _lines(lines)


def values(schema: dict[str, Any]) -> str:
    """The values that a JSON Schema allows, in words and limits: "whole number, at least 1, or `null`"."""
    words = [word for choice in schema.get("anyOf", [schema]) for word in _words(choice)]
    *others, last = words
    comma = "," if any("," in word for word in others) else ""  # which then ends the limits of what stands before
    return f"{', '.join(others)}{comma} or {last}" if others else last


def _words(schema: dict[str, Any]) -> list[str]:
    if "enum" in schema or "const" in schema or schema["type"] in ("boolean", "null"):
        return [f"`{word}`" for word in accepted_types(schema)]
    if schema["type"] == "array":
        return [_list(schema)]
    return [", ".join([_TYPES[schema["type"]], *_limits(schema)])]


def _list(schema: dict[str, Any]) -> str:
    item = schema["prefixItems"][0] if "prefixItems" in schema else schema["items"]
    if "enum" in item:
        return f"list of {join_or([f'`{word}`' for word in item['enum']])}"
    return ", each ".join([list_type(schema), *filter(None, [_range(item)])])


def _limits(schema: dict[str, Any]) -> list[str]:
    return [text for text in (_range(schema), "not empty" if schema.get("minLength") else "") if text]


def _range(schema: dict[str, Any]) -> str:
    lowest, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    highest, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    highest = None if highest == INT32_MAX else highest
    if lowest is not None and highest is not None:
        return f"{_number(lowest)} to {_number(highest)}"
    parts = [
        f"{word} {_number(limit)}"
        for word, limit in (("at least", lowest), ("above", above), ("at most", highest), ("below", below))
        if limit is not None
    ]
    return " and ".join(parts)


def _number(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:,g}"


def _marked(key: str) -> str:
    return f"`{key}`" + (" ↻" if may_change(key) else "")


def _default(value: Any) -> str:
    return f"`{to_yaml_scalar(value)}`"


def _meaning(key: str) -> str:
    return description(fields()[key])


def commands_page() -> str:
    """Every verb: usage, what it does, arguments, options, an example."""
    pages = list(every_command())
    lines = [
        "# Command reference",
        "",
        _NOTE,
        "",
        "What `gpt COMMAND --help` says, on one page. Data goes to stdout and everything else to stderr; `--json`"
        " prints one JSON object. Exit codes: 0 done, 1 the work failed (data, disk, memory, numbers that are not"
        " finite), 2 the request is wrong, 70 a bug in `gpt`, 129, 130 and 143 stopped by a signal, after saving.",
        "",
        *(f"- [`{path}`](#{path.replace(' ', '-')}): {_escape(context.command.get_short_help_str(200))}"
          for path, context in pages),
        "",
        "Options of `gpt` itself: `--debug`, anywhere on the line, prints tracebacks (also: `GPT_DEBUG=1`), `--version`"
        " the version, `--install-completion` has the shell complete commands, options and keys of a config."
        " `GPT_CPU=x86-64-v3` or `x86-64-v4` computes as on such a processor ([why](../design/cpu_training.md)).",
    ]  # fmt: skip
    for path, context in pages:
        lines += ["", f"## {path}", "", *_page(path, context)]
    return _lines(lines)


def every_command() -> Iterator[tuple[str, typer.Context]]:
    """("gpt data list", its context) of every verb that does something, in the order of the help."""
    root: Any = typer.main.get_command(app)
    yield from _below(root, root.make_context("gpt", [], resilient_parsing=True))


def _below(group: Any, context: typer.Context) -> Iterator[tuple[str, typer.Context]]:
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        inner = typer.Context(command, info_name=name, parent=context)
        if hasattr(command, "list_commands"):
            if "Example: " in (command.help or ""):  # it does something by itself
                yield inner.command_path, inner
            yield from _below(command, inner)
        elif not command.hidden:
            yield inner.command_path, inner


def _page(path: str, context: typer.Context) -> Iterator[str]:
    command: Any = context.command
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield from ["```text", usage, "```"]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        text = " ".join(paragraph.split())
        if not text.startswith("Example: "):
            yield from ["", _escape(text)]
    for heading, records in help_sections(command, context).items():
        rows = [(f"`{written}`", " ".join(meaning.split())) for written, meaning in records if "--help" not in written]
        if rows:
            yield from ["", *_table((heading.lower(), "meaning"), rows)]
    yield from ["", "```text", example(command), "```"]


def example(command: Any) -> str:
    """The command line that a verb's help gives as its example."""
    match = re.search(r"^Example: (gpt .*)$", inspect.cleandoc(command.help or ""), re.MULTILINE)
    assert match is not None, f"the help of {command.name} has no example"
    return match[1]


def _lines(lines: Sequence[str]) -> str:
    """A page; what is neither a table nor a list nor code is wrapped, so that a change shows where it is."""
    wrapped = [line if line.startswith(("|", "- ", "gpt ", "```")) else fill(line, _WIDTH) for line in lines]
    return "\n".join(wrapped) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *([_escape(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _escape(text: str) -> str:
    """`text` without what Markdown would take for HTML or for emphasis; what is in backticks stays as it is."""
    parts = text.split("`")
    return "`".join(part if index % 2 else re.sub(r"([<*_])", r"\\\1", part) for index, part in enumerate(parts))


if __name__ == "__main__":
    for written in write_reference(Path(sys.argv[1])):
        print(written)
