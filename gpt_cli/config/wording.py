"""What the schema's checks found, said in the words of the config."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import groupby
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpt_cli.config.keys import accepted, fields, one_of, schema_of, sections, suggest
from gpt_cli.config.problems import KeyPath, Place, Problem, dotted, shorten
from gpt_cli.config.yaml_subset import Document, resolve_scalar

_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_YES_AND_NO = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_NOTHING = frozenset({"none", "off", "no", "never", "nil"})


def problems_in(error: ValidationError, document: Document) -> Iterator[Problem]:
    """Each key that `error` complains about, once, unless the document has a problem of its own there."""
    reported = [problem.path for problem in document.problems if problem.path is not None]
    for path, details in groupby(error.errors(include_url=False), _key_of):
        if not any(path[: len(place)] == place for place in reported):
            yield _problem(path, list(details), document)


def _key_of(detail: ErrorDetails) -> KeyPath:
    """The key in an error's location, behind which come pydantic's union members and the indices of items."""
    location = detail["loc"]
    return location[:2] if location and location[0] in sections() else location[:1]


def _problem(path: KeyPath, details: list[ErrorDetails], document: Document) -> Problem:
    kind = details[0]["type"]
    if kind == "extra_forbidden":
        return Problem(f"{dotted(path)} is not a key", document.keys[path], suggest(path))
    if kind == "value_error":
        message = str(details[0]["ctx"]["error"])
        return Problem(message, _place_of_disagreement(message, path, document))
    if kind == "model_type":
        message = f"{dotted(path)} must be a section with keys of its own, not {spell(details[0]['input'])}"
        return Problem(message, document.place(path))
    return _wrong_value(path, details, document)


def _wrong_value(path: KeyPath, details: list[ErrorDetails], document: Document) -> Problem:
    schema, name, value = schema_of(dotted(path)), dotted(path), _look_up(document.values, path)
    detail = max(details, key=_tells_most)
    index = next((part for part in detail["loc"] if isinstance(part, int)), None)
    if index is not None and detail["type"] not in ("missing", "too_long"):
        schema, name, value = _schema_of_item(schema, index), f"item {index + 1} of {name}", value[index]
        path = (*path, index)
    rule = _rule(detail, accepted(schema))
    return Problem(
        f"{name} must {rule}, not {spell(value)}", document.place(path), _way_out(value, accepted(schema))
    )


def _tells_most(detail: ErrorDetails) -> tuple[bool, bool]:
    """Of the complaints about one value, those of an item or a limit: the others are of types it does not have."""
    return any(isinstance(part, int) for part in detail["loc"]), not detail["type"].endswith("_type")


def _rule(detail: ErrorDetails, words: list[str]) -> str:
    limits = detail.get("ctx", {})
    for name, limit in _LIMITS.items():
        if name in limits:
            number = limits[name]
            return f"be {limit} {number:g}" if isinstance(number, float) else f"be {limit} {number}"
    if detail["type"] in ("string_too_short", "too_short"):
        return "have something in it"
    return "be a finite number" if detail["type"] == "finite_number" else f"be {one_of(words)}"


def spell(value: object) -> str:
    """A value as messages name it."""
    if isinstance(value, str):
        return f"the text {shorten(repr(value))}"
    if isinstance(value, list | dict):
        return ("a list" if isinstance(value, list) else "a section") if value else f"the empty {value}"
    return {None: "null", True: "true", False: "false"}.get(value) if isinstance(value, bool | None) else shorten(str(value))
