"""The keys of the schema by their dotted names: what each accepts, and which one was probably meant."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from gpt_cli.config import data_schema, model_schema, sample_schema, task_schema
from gpt_cli.config import schema as main_schema
from gpt_cli.config.diagnostics import KeyPath
from gpt_cli.config.foreign_keys import FOREIGN_KEYS, NEEDS_CONVERSION, assignment
from gpt_cli.config.schema import Config, ConfigSection
from gpt_cli.config.section import ConfigValues

_TYPES = {
    "integer": ["a whole number"],
    "number": ["a number"],
    "string": ["text"],
    "boolean": ["true", "false"],
    "null": ["null"],
}
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
    return dict(_fields())


def _fields() -> Iterator[tuple[str, FieldInfo]]:
    for name, field in Config.model_fields.items():
        section = sections().get(name)
        if section is None:
            yield name, field
        else:
            yield from ((f"{name}.{key}", value) for key, value in section.model_fields.items())


@cache
def _attach_descriptions() -> None:
    """Give each definition the text below it as its description.

    pydantic does that, too (`use_attribute_docstrings`), but whenever the schema is imported, which takes 20 ms. Where
    there is no source they stay without.
    """
    every: list[type[ConfigSection]] = [*sections().values(), Config]
    classes = {cls.__name__: cls for cls in every}
    try:
        source = "".join(map(inspect.getsource, (data_schema, model_schema, sample_schema, task_schema, main_schema)))
    except OSError:
        return
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or node.name not in classes:
            continue
        for definition, text in pairwise(node.body):
            match definition, text:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    classes[node.name].model_fields[key].description = inspect.cleandoc(meaning)
    for cls in every:
        cls.model_rebuild(force=True)


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
    _attach_descriptions()
    text = definition.description if isinstance(definition, FieldInfo) else definition.__doc__
    return " ".join((text or "").split())


def meaning_of_null(key: str) -> str | None:
    """The meaning of null as the value of `key`, from the end of its description; None if that does not tell."""
    _, _, meaning = description(fields()[key]).partition("null: ")
    return meaning.rstrip(".") or None


class _WithoutTitles(GenerateJsonSchema):
    """Titles would repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def json_schema() -> dict[str, Any]:
    """The schema as JSON Schema, draft 2020-12, for editors that complete and check."""
    _attach_descriptions()
    return {"$schema": GenerateJsonSchema.schema_dialect, **Config.model_json_schema(schema_generator=_WithoutTitles)}


@cache
def _types() -> dict[str, Any]:
    """The same for its types alone: the meanings may be missing."""
    return Config.model_json_schema(schema_generator=_WithoutTitles)


def schema_of(key: str) -> dict[str, Any]:
    """The JSON Schema of the values of one dotted key; it may lack the description."""
    section, _, name = key.rpartition(".")
    schema = _types()
    if section:
        schema = schema["$defs"][sections()[section].__name__]
    schema_of_key: dict[str, Any] = schema["properties"][name]
    return schema_of_key


def accepted_types(schema: dict[str, Any]) -> list[str]:
    """The types that the JSON Schema of a value accepts, as text: `["a whole number", "null"]`."""
    if "anyOf" in schema:
        return [word for choice in schema["anyOf"] for word in accepted_types(choice)]
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return list(schema["enum"])
    if schema["type"] == "array":
        return [f"a {list_type(schema)}"]
    return _TYPES[schema["type"]]


def list_type(schema: dict[str, Any]) -> str:
    """The type that the JSON Schema of a list accepts, as text: "list of 2 numbers"."""
    items = schema.get("prefixItems", [schema.get("items")])
    number = f"{len(items)} " if "prefixItems" in schema else ""
    return f"list of {number}{_ITEMS[items[0]['type']]}"


def join_or(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def suggest(path: KeyPath, value: object = None) -> str | None:
    """A hint which key may be meant by the unknown key `path`, which was given `value`."""
    *around, name = (str(part).lower().replace("-", "_") for part in path)
    if len(path) == 1 and name in fields() and "." in name:
        section, _, key = name.rpartition(".")
        return f"write {key} under `{section}:`"
    if name in NEEDS_CONVERSION and name not in fields():
        return f"did you mean {assignment(name, FOREIGN_KEYS[name], str(value))}?"
    suggestions = _closest_keys(".".join(around), name)
    if isinstance(value, Mapping) and not around:  # `optimizer:` with keys of its own is a section, not its name
        suggestions = _closest_sections(name) or list(dict.fromkeys(key.partition(".")[0] for key in suggestions))
    if suggestions:
        return f"did you mean {join_or(suggestions)}?"
    return None


def _closest_sections(name: str) -> list[str]:
    begun = [section for section in sections() if name.startswith(section)]  # model_config, evaluation
    return begun or get_close_matches(name, sections(), 1, 0.7)


def key_for(name: str) -> str | None:
    """The key that `name`, without a section, may stand for."""
    spelled = name.lower().replace("-", "_")
    return next((key for key in [spelled, *_closest_keys("", spelled)] if key in fields()), None)


def suggest_keys(path: KeyPath) -> list[str]:
    """The keys and sections that may be meant by the unknown key `path`."""
    *around, name = (str(part).lower().replace("-", "_") for part in path)
    return _closest_keys(".".join(around), name)


def _closest_keys(section: str, name: str) -> list[str]:
    keys: dict[str, list[str]] = {}
    for key in [*sections(), *fields()]:
        keys.setdefault(key.rpartition(".")[2], []).append(key)
    beside = [key.rpartition(".")[2] for key in [*sections(), *fields()] if key.rpartition(".")[0] == section]
    if f"{section}_{name}" in FOREIGN_KEYS:  # eval.interval, for eval_interval
        return [FOREIGN_KEYS[f"{section}_{name}"]]
    elsewhere = [FOREIGN_KEYS[name]] if name in FOREIGN_KEYS else []
    if candidates := (keys.get(name) or elsewhere) if section else (elsewhere or keys.get(name)):
        return candidates
    if close := get_close_matches(name, beside, 1, 0.6):
        return [f"{section}.{close[0]}" if section else close[0]]
    close = get_close_matches(name, keys, 1, 0.7)
    return keys[close[0]] if close else []
