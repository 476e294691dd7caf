"""The problems of a config, each with its place, all raised in one error."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpt_cli.config.keys import accepted_types, fields, schema_of, sections, suggest_keys
from gpt_cli.config.section import DISAGREEMENT, show_plain
from gpt_cli.config.synonyms import VALUES, suggest
from gpt_cli.config.yaml_reader import MAX_SHOWN, ConfigError, KeyPath, ParsedYaml, SourceLocation, key_name
from gpt_cli.errors import RequestError, join_or
from gpt_cli.terminal.escape import escape_control_chars, shorten

SHOWN = 10  # problems in one error; the rest is counted
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_WRONG_LENGTH = ("missing", "too_long")


def to_error(name: str, problems: Sequence[ConfigError]) -> RequestError:
    """The error that reports `problems` of the config `name`, in the order of their places."""
    if len(problems) == 1:
        (only,) = problems
        where = None if only.place.line is None else str(only.place)
        return RequestError(escape_control_chars(only.message), where=where, keys=only.keys, choices=only.choices)
    ordered = sorted(problems, key=lambda one: (one.place.line is None, one.place.line or 0, one.place.column or 0))
    lines = list(map(str, ordered[:SHOWN])) + [f"... and {len(ordered) - SHOWN} more"] * (len(ordered) > SHOWN)
    heading = f"{escape_control_chars(name)} is not a valid config: {len(problems)} problems"
    keys = [key for one in ordered[:SHOWN] for key in one.keys if one.place.line is None]
    return RequestError("\n  ".join([heading, *lines]), keys=keys)


def translate_errors(error: ValidationError, document: ParsedYaml, *, is_part: bool = False) -> Iterator[ConfigError]:
    """Each key that `error` complains about, once, unless the document has a problem of its own there.

    `is_part`: the document leaves keys to be filled in; what does not go together with one of them is passed over.
    """

    def key_of(detail: ErrorDetails) -> KeyPath:  # behind it come pydantic's union members, and indices of items
        location = detail["loc"]
        return location[:2] if location and location[0] in sections() else location[:1]

    reported = [problem.path for problem in document.problems if problem.path is not None]
    for path, details in groupby(error.errors(include_url=False), key_of):
        first, *others = details
        if any(path[: len(place)] == place for place in reported):
            continue
        if first["type"] == DISAGREEMENT:
            keys = tuple(first["ctx"]["keys"])
            if not (is_part and any(tuple(key.split(".")) not in document.locations for key in keys)):
                yield ConfigError(first["ctx"]["message"], _place_of_disagreement(keys, path, document), keys)
        else:
            yield _problem_of_key(path, [first, *others], document)


def _place_of_disagreement(keys: Sequence[str], section: KeyPath, document: ParsedYaml) -> SourceLocation:
    """The key to blame: one that is overridden, else the first one set."""
    paths = [tuple(key.split(".")) for key in keys]
    places = [document.locations[path] for path in paths if path in document.locations]
    return next(iter([*(place for place in places if place.line is None), *places]), document.location(section))


def _problem_of_key(path: KeyPath, details: list[ErrorDetails], document: ParsedYaml) -> ConfigError:
    name, value = key_name(path), document.value(path)
    kind = details[0]["type"]
    if kind == "extra_forbidden":
        if len(path) == 1 and (section := name.rpartition(".")[0]) and name in fields():
            return ConfigError(f"{name} belongs under `{section}:`, without the dot", document.keys[path])
        return ConfigError(f"{name} is not a key", document.keys[path], choices=tuple(suggest_keys(path, value)))
    if kind == "model_type":
        return ConfigError(f"{name} must be a section with keys of its own, not {show(value)}", document.location(path))
    # Of the errors of one value those about an item or a limit; others name types it does not have.
    detail = max(details, key=lambda one: (_index(one) is not None, not one["type"].endswith("_type")))
    schema, keys, index = schema_of(name), (name,), _index(detail)
    if index is not None and detail["type"] not in _WRONG_LENGTH:
        lists = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") == "array"]
        schema = lists[0].get("prefixItems", [lists[0].get("items")] * (index + 1))[index]
        name, value, path = f"item {index + 1} of {name}", value[index], (*path, index)
    return _wrong_value(name, value, schema, detail, document.location(path), keys)


def _index(detail: ErrorDetails) -> int | None:
    return next((part for part in detail["loc"] if isinstance(part, int)), None)


def _wrong_value(
    name: str, value: Any, schema: dict[str, Any], detail: ErrorDetails, place: SourceLocation, keys: tuple[str, ...]
) -> ConfigError:
    words, context = accepted_types(schema), detail.get("ctx", {})
    limit = next((name for name in _LIMITS if name in context), None)
    or_null = " or null" if "null" in words else ""
    if (least := context.get("min_length")) is not None:
        must = "not be empty" if least == 1 else f"have at least {least} items, not {len(value)}"
    elif limit is not None:
        bound = context[limit]
        must = f"be {_LIMITS[limit]} {bound if isinstance(bound, int) else f'{bound:g}'}{or_null}, not {show(value)}"
    elif detail["type"] == "finite_number":
        must = f"be a finite number, not {show(value)}"
    else:
        must = f"be {join_or(words)}, not {show(value)}"
    known = [word for word in words if " " not in word and word != "text"]
    meant = suggest(str(value), known, VALUES) if isinstance(value, str | int) and known else []
    return ConfigError(f"{name} must {must}", place, keys, tuple(meant))


def show(value: object) -> str:
    """A value as messages name it."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "a section"
    return shorten(repr(value) if isinstance(value, str) else show_plain(value), MAX_SHOWN)
