"""A Config as YAML: whole, or what differs from the defaults, or with every key explained."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from shlex import quote
from textwrap import wrap
from typing import Any

from gpt_cli.config.keys import accepted_types, description, fields, get_key, join_or, schema_of, sections
from gpt_cli.config.schema import Config
from gpt_cli.config.section import ConfigValues
from gpt_cli.config.template import sample_section
from gpt_cli.config.yaml_subset import resolve_scalar

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*(:[A-Za-z0-9_./+-]+)*")
_OLD_BOOLEANS = frozenset({"y", "n", "yes", "no", "on", "off"})  # to readers of YAML 1.1
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
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
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_yaml_scalar, value))}]"
    text = str(value)
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
    choices = f"{join_or(words)}. " if _is_choice(words) else ""
    return choices + description(fields()[key])


def _is_choice(words: Sequence[str]) -> bool:
    return not any(" " in word or word in ("text", "null") for word in words) and words != ["true", "false"]


def _visible(character: str) -> str:
    """`character`, or its escape in YAML if it is not printable."""
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
