"""The keys of the schema by their dotted names: types, meanings, and suggestions for unknown ones."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from gpt_cli.config.schema import Config, ConfigSection
from gpt_cli.config.section import ConfigValues, parse_duration
from gpt_cli.config.synonyms import KEYS, suggest
from gpt_cli.config.yaml_reader import KeyPath

_TYPES = {"integer": "a whole number", "number": "a number", "string": "text", "null": "null"}
_COUNT = re.compile(r"([0-9]{1,9})([kKmM])")
_ITEMS = {"integer": "whole numbers", "number": "numbers", "string": "texts"}


@cache
def sections() -> dict[str, type[ConfigSection]]:
    """{name: class} in the order of the schema."""
    return {
        name: field.annotation
        for name, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, ConfigSection)
    }


@cache
def fields() -> dict[str, FieldInfo]:
    """{dotted key: its definition} in the order of the schema."""
    return {
        f"{name}.{key}" if name in sections() else name: definition
        for name, field in Config.model_fields.items()
        for key, definition in (sections()[name].model_fields if name in sections() else {name: field}).items()
    }


def get_key(config: Config, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, section) if section else config, name)


def dotted_keys(values: Mapping[str, object]) -> frozenset[str]:
    """The keys of nested `values`, as `section.key`."""
    return frozenset(
        key
        for name, value in values.items()
        for key in ((f"{name}.{inner}" for inner in value) if isinstance(value, Mapping) else (name,))
    )


def replace_keys(config: Config, values: ConfigValues) -> Config:
    """`config` with these values, which are not validated."""
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        part = getattr(config, section).model_copy(update={name: value}) if section else value
        config = config.model_copy(update={section or name: part})
    return config


def description(definition: FieldInfo | type[ConfigSection]) -> str:
    """The meaning of a key or a section, on one line."""
    text = definition.description if isinstance(definition, FieldInfo) else definition.__doc__
    return " ".join((text or "").split())


class _WithoutTitles(GenerateJsonSchema):
    """Titles would repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def json_schema() -> dict[str, Any]:
    """The schema as JSON Schema, draft 2020-12, for editors that complete and check."""
    return {"$schema": GenerateJsonSchema.schema_dialect, **Config.model_json_schema(schema_generator=_WithoutTitles)}


def schema_of(key: str) -> dict[str, Any]:
    """The JSON Schema of the values of one dotted key."""
    section, _, name = key.rpartition(".")
    schema = json_schema()["$defs"][sections()[section].__name__] if section else json_schema()
    schema_of_key: dict[str, Any] = schema["properties"][name]
    return schema_of_key


def accepted_types(schema: dict[str, Any]) -> list[str]:
    """The types that the JSON Schema of a value accepts, as text: `["a whole number", "null"]`."""
    if "anyOf" in schema:
        return [word for choice in schema["anyOf"] for word in accepted_types(choice)]
    if "const" in schema or "enum" in schema:
        return list(schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        return [f"a {list_type(schema)}"]
    return ["true", "false"] if schema["type"] == "boolean" else [_TYPES[schema["type"]]]


def accept_units(key: str, value: Any) -> Any:
    """`value` as `key` takes it: accept 10k, 2M and 1e3 for a count, and 90s for minutes."""
    count = _COUNT.fullmatch(value) if isinstance(value, str) else None
    seconds = parse_duration(value) if isinstance(value, str) else None
    if not (count or seconds or (isinstance(value, float) and value.is_integer())) or key not in fields():
        return value
    types = accepted_types(schema_of(key))
    if "a whole number" in types and not isinstance(value, str):
        return int(value)
    if "a whole number" in types and count is not None:
        return int(count[1]) * {"k": 1000, "m": 1_000_000}[count[2].lower()]
    return seconds / 60 if seconds is not None and key.endswith("_minutes") else value


def list_type(schema: dict[str, Any]) -> str:
    """The type that the JSON Schema of a list accepts, as text: "list of 2 numbers"."""
    items = schema.get("prefixItems", [schema.get("items")])
    number = f"{len(items)} " if "prefixItems" in schema else ""
    return f"list of {number}{_ITEMS[items[0]['type']]}"


def suggest_keys(path: KeyPath, value: object = None) -> list[str]:
    """The keys or sections that may be meant by the unknown key `path`, which was given `value`."""
    *around, name = (str(part).lower().replace("-", "_") for part in path)
    if isinstance(value, Mapping) and not around:  # `optimizer:` with keys of its own is a section, not its name
        return [section for section in sections() if name.startswith(section)] or suggest(name, sections())
    section = ".".join(around)
    named: dict[str, list[str]] = {}  # keys and sections by their last part
    for key in [*sections(), *fields()]:
        named.setdefault(key.rpartition(".")[2], []).append(key)
    elsewhere = [key for key in KEYS.get(f"{section}_{name}", KEYS.get(name, [])) if key in fields()]
    if meant := (named.get(name) or elsewhere) if section else (elsewhere or named.get(name)):
        return meant
    beside = {last: key for last, keys in named.items() for key in keys if key.rpartition(".")[0] == section}
    if close := suggest(name, beside):
        return [beside[close[0]]]
    return [key for close in suggest(name, named) for key in named[close]]
