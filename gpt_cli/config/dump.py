"""A Config as YAML: whole, or what differs from the defaults, or with every key explained; the origin of each value."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import Any, NamedTuple

from gpt_cli.config.derived import sample_section
from gpt_cli.config.keys import accepted_types, description, fields, get_key, schema_of, sections
from gpt_cli.config.load import merge_layers, read_config_file
from gpt_cli.config.recipes import RECIPES
from gpt_cli.config.schema import Config
from gpt_cli.config.section import ConfigValues, show_plain
from gpt_cli.config.yaml_reader import SourceLocation, resolve_scalar
from gpt_cli.errors import join_or

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*(:[A-Za-z0-9_./+-]+)*")
_OLD_BOOLEANS = frozenset({"y", "n", "yes", "no", "on", "off"})  # to readers of YAML 1.1
_ESCAPES = {'"': '\\"', "\\": "\\\\"}
_WIDTH = 80


def dump_config(config: Config, *, full: bool = True) -> str:
    """`config` as YAML that loads to an equal one; not `full`: only what no default, recipe or template says."""
    default = Config(recipe=config.recipe)
    # Not what follows from `data`: an override of what it is made of shall change it, too.
    template = {
        f"sample.{key}": value for key, value in sample_section({"data": config.data}).get("sample", {}).items()
    }
    differing = [key for key in fields() if get_key(config, key) != template.get(key, get_key(default, key))]
    return _dump(config, fields() if full else ["recipe"] * (config.recipe is not None) + differing)


def annotate_config(config: Config) -> str:
    """`config` as YAML, each section and key with its meaning above it as a comment."""
    return _dump(config, fields(), annotated=True)


def comment(lines: Iterable[str], indent: str = "") -> list[str]:
    """`lines` as lines of YAML comment, wrapped; whatever characters they hold, they stay comments."""
    prefix = f"{indent}# "
    visible = ["".join(map(_visible, line)) for line in lines]
    return [prefix + part for line in visible for part in wrap(line, _WIDTH - len(prefix))]


def to_yaml_scalar(value: Any) -> str:
    """A value as it is written in a config. Text is quoted unless every YAML reader takes it for text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_yaml_scalar, value))}]"
    text = show_plain(value)
    if not isinstance(value, str):
        return text
    if _PLAIN.fullmatch(text) and isinstance(resolve_scalar(text), str) and text.lower() not in _OLD_BOOLEANS:
        return text
    return f'"{"".join(_ESCAPES.get(character) or _visible(character) for character in text)}"'


def join_overrides(values: ConfigValues) -> str:
    """`values` as they are typed at a command line, `section.key=value` each."""
    return " ".join(quote(f"{key}={to_yaml_scalar(value)}") for key, value in values.items())


def _dump(config: Config, keys: Iterable[str], *, annotated: bool = False) -> str:
    lines: list[str] = []
    for section, members in groupby(keys, lambda key: key.rpartition(".")[0]):
        if annotated and section:
            lines += ["", *comment([description(sections()[section])])]
        if section:
            lines.append(f"{section}:")
        indent = "  " if section else ""
        for key in members:
            if annotated:
                lines += comment([_meaning(key)], indent)
            lines.append(f"{indent}{key.rpartition('.')[2]}: {to_yaml_scalar(get_key(config, key))}")
    return "".join(f"{line}\n" for line in lines)


def _meaning(key: str) -> str:
    """The meaning of a key, after its choices if it is one of a few words."""
    words = accepted_types(schema_of(key))
    is_choice = not any(" " in word or word in ("text", "null") for word in words) and words != ["true", "false"]
    return (f"{join_or(words)}. " if is_choice else "") + description(fields()[key])


def _visible(character: str) -> str:
    """`character`, or its escape in YAML if it is not printable, which is Python's."""
    return character if character.isprintable() else character.encode("unicode_escape").decode()


class KeyOrigin(NamedTuple):
    """A key with its value, where that comes from (`default`, `recipe`, `file:line` or `override`), and its meaning."""

    key: str
    value: Any
    origin: str
    description: str


def explain(config: Config, path: Path, overrides: Sequence[str] = ()) -> list[KeyOrigin]:
    """Every key of `config`, which `load_config(path, overrides)` returned, in the order of the schema."""
    document = merge_layers(read_config_file(path), str(path), overrides)

    def origin(key: str, place: SourceLocation | None) -> str:
        if place is not None:
            return "override" if place.line is None else f"{place.source}:{place.line}"
        section, _, name = key.rpartition(".")
        recipe = RECIPES[config.recipe] if config.recipe is not None else {}
        return f"recipe {config.recipe}" if name in recipe.get(section, {}) else "default"

    return [
        KeyOrigin(
            *(key, get_key(config, key), origin(key, document.locations.get(tuple(key.split("."))))),
            description(definition),
        )
        for key, definition in fields().items()
    ]


def changed_keys(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """(key, old value, new value) of every key in which the two differ, in the order of the schema."""
    return [(key, get_key(old, key), get_key(new, key)) for key in fields() if get_key(old, key) != get_key(new, key)]
