"""The keys of the schema by their dotted names: what each accepts, and which one was probably meant."""

import ast
import inspect
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from gpt_cli.config import schema as _schema
from gpt_cli.config.problems import KeyPath
from gpt_cli.config.schema import Config, Section

_TYPES = {
    "integer": ["a whole number"],
    "number": ["a number"],
    "string": ["text"],
    "boolean": ["true", "false"],
    "null": ["null"],
}
_ITEMS = {"integer": "whole numbers", "number": "numbers", "string": "texts"}

NAMES_ELSEWHERE = {
    "block_size": "model.context_length",
    "n_ctx": "model.context_length",
    "max_seq_len": "model.context_length",
    "d_model": "model.n_embd",
    "vocab_size": "tokenizer.vocab_size",
    "learning_rate": "optim.lr",
    "min_lr": "schedule.min_lr_ratio",
    "warmup_iters": "schedule.warmup_steps",
    "max_iters": "train.steps",
    "epochs": "train.steps",
    "gradient_accumulation_steps": "train.micro_batch_size",
    "eval_interval": "eval.every",
    "log_interval": "log.every",
    "dataset": "data.source",
    "dtype": "runtime.precision",
    "out_dir": "run_dir",
}
"""What other trainers call our keys."""


@cache
def sections() -> dict[str, type[Section]]:
    """{name: class} in the order of the schema."""
    return {
        name: field.annotation
        for name, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
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
def _tell_meanings() -> None:
    """Give each definition the text below it as its description.

    pydantic does that, too (`use_attribute_docstrings`), but whenever the schema is imported, which takes 20 ms. Where
    there is no source they stay without.
    """
    every: list[type[Section]] = [*sections().values(), Config]
    classes = {cls.__name__: cls for cls in every}
    try:
        source = inspect.getsource(_schema)
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


def value_of(config: Config, key: str) -> Any:
    """The value of a dotted key."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, section) if section else config, name)


def description(definition: FieldInfo | type[Section]) -> str:
    """What a key or a section means, on one line."""
    _tell_meanings()
    text = definition.description if isinstance(definition, FieldInfo) else definition.__doc__
    return " ".join((text or "").split())


class _WithoutTitles(GenerateJsonSchema):
    """Titles would repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def json_schema() -> dict[str, Any]:
    """The schema as JSON Schema, draft 2020-12, for editors that complete and check."""
    _tell_meanings()
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
    found: dict[str, Any] = schema["properties"][name]
    return found


def accepted(schema: dict[str, Any]) -> list[str]:
    """What the JSON Schema of a value accepts, in words: `["a whole number", "null"]`."""
    if "anyOf" in schema:
        return [word for choice in schema["anyOf"] for word in accepted(choice)]
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return list(schema["enum"])
    if schema["type"] == "array":
        items = schema.get("prefixItems", [schema.get("items")])
        number = f"{len(items)} " if "prefixItems" in schema else ""
        return [f"a list of {number}{_ITEMS[items[0]['type']]}"]
    return _TYPES[schema["type"]]


def one_of(words: list[str]) -> str:
    """`a, b or c`."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def suggest(path: KeyPath) -> str | None:
    """A hint which key may be meant by the unknown key `path`."""
    *around, name = (str(part).lower().replace("-", "_") for part in path)
    if len(path) == 1 and name in fields() and "." in name:
        section, _, key = name.rpartition(".")
        return f"write {key} under `{section}:`"
    if meant := _meant(".".join(around), name):
        return f"did you mean {one_of(meant)}?"
    return None


def _meant(section: str, name: str) -> list[str]:
    keys: dict[str, list[str]] = {}
    for key in [*sections(), *fields()]:
        keys.setdefault(key.rpartition(".")[2], []).append(key)
    beside = [key.rpartition(".")[2] for key in [*sections(), *fields()] if key.rpartition(".")[0] == section]
    if name in keys:
        return keys[name]
    if name in NAMES_ELSEWHERE:
        return [NAMES_ELSEWHERE[name]]
    if close := get_close_matches(name, beside, 1, 0.6):
        return [f"{section}.{close[0]}" if section else close[0]]
    close = get_close_matches(name, keys, 1, 0.7)
    return keys[close[0]] if close else []
