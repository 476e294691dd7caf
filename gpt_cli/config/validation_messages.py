"""Translate pydantic's validation errors into messages about the config."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import groupby
from shlex import quote
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpt_cli.config.diagnostics import MAX_SHOWN, Diagnostic, KeyPath, SourceLocation, key_name
from gpt_cli.config.duration import parse_duration
from gpt_cli.config.foreign_keys import FOREIGN_VALUES
from gpt_cli.config.keys import accepted_types, fields, join_or, meaning_of_null, schema_of, sections, suggest
from gpt_cli.config.yaml_subset import ParsedYaml, resolve_scalar
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.table import shorten

_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_YES_AND_NO = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_NOTHING = frozenset({"none", "off", "no", "never", "nil"})
_EMPTY = frozenset({"string_too_short", "too_short"})
_WRONG_LENGTH = frozenset({"missing", "too_long"})


def translate_errors(error: ValidationError, document: ParsedYaml, *, is_part: bool = False) -> Iterator[Diagnostic]:
    """Each key that `error` complains about, once, unless the document has a problem of its own there.

    `is_part`: the document leaves keys to be filled in; what does not fit together with one of them is passed over.
    """
    reported = [problem.path for problem in document.problems if problem.path is not None]
    for path, complaints in groupby(error.errors(include_url=False), _key_of):
        details = list(complaints)
        disagree = _keys_in(str(details[0]["ctx"]["error"])) if details[0]["type"] == "value_error" else []
        if is_part and any(key not in document.locations for key in disagree):
            continue
        if not any(path[: len(place)] == place for place in reported):
            yield _problem(path, details, document)


def _key_of(detail: ErrorDetails) -> KeyPath:
    """The key in an error's location, behind which come pydantic's union members and the indices of items."""
    location = detail["loc"]
    return location[:2] if location and location[0] in sections() else location[:1]


def _problem(path: KeyPath, details: list[ErrorDetails], document: ParsedYaml) -> Diagnostic:
    kind = details[0]["type"]
    if kind == "extra_forbidden":
        return Diagnostic(
            f"{key_name(path)} is not a key", document.keys[path], suggest(path, look_up(document.values, path))
        )
    if kind == "value_error":
        message = str(details[0]["ctx"]["error"])
        return Diagnostic(message, _place_of_disagreement(message, path, document))
    if kind == "model_type":
        message = f"{key_name(path)} must be a section with keys of its own, not {format_value(details[0]['input'])}"
        return Diagnostic(message, document.location(path))
    return _wrong_value(path, details, document)


def _wrong_value(path: KeyPath, details: list[ErrorDetails], document: ParsedYaml) -> Diagnostic:
    schema, name, value = schema_of(key_name(path)), key_name(path), look_up(document.values, path)
    detail = max(details, key=_most_specific)
    index = next((part for part in detail["loc"] if isinstance(part, int)), None)
    if index is not None and detail["type"] not in _WRONG_LENGTH:
        schema, name, value = _schema_of_item(schema, index), f"item {index + 1} of {name}", value[index]
        path = (*path, index)
    words, place = accepted_types(schema), document.location(path)
    key = key_name(path) if place.line is None else None
    fix = (
        _suggest_minutes(name, value)
        or _suggest_fix(value, words, key)
        or (_suggest_null(name, value) if "null" in words else None)
    )
    return Diagnostic(f"{name} must {_rule(detail, words, value)}", place, fix)


def _most_specific(detail: ErrorDetails) -> tuple[bool, bool]:
    """The most specific errors of one value: those about an item or a limit; others name types it does not have."""
    return any(isinstance(part, int) for part in detail["loc"]), not detail["type"].endswith("_type")


def _rule(detail: ErrorDetails, words: list[str], value: object) -> str:
    if detail["type"] in _EMPTY:
        least = detail["ctx"]["min_length"]
        return "not be empty" if least == 1 else f"have at least {least} items, not {len(value)}"  # type: ignore[arg-type]
    if detail["type"] == "finite_number":
        return f"be a finite number, not {format_value(value)}"
    limits = detail.get("ctx", {})
    for name, limit in _LIMITS.items():
        if name in limits:
            return f"be {limit} {_number(limits[name])}, not {format_value(value)}"
    return f"be {join_or(words)}, not {format_value(value)}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def format_value(value: object) -> str:
    """A value as messages name it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {shorten(repr(value), MAX_SHOWN)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "a section" if isinstance(value, dict) else shorten(str(value), MAX_SHOWN)


def _suggest_fix(value: object, words: list[str], key: str | None) -> str | None:
    """A suggested value, if there is an obvious one. `key`: that of an override, which is typed in a shell; or None."""
    if isinstance(value, str) and (word := next((word for word in words if word == value.lower() != value), None)):
        return f"did you mean {word}?"
    if any(word.startswith("a list of") for word in words) and isinstance(value, str) and value.strip():
        are_numbers = any(word.startswith("a list of") and word.endswith("numbers") for word in words)
        items = [item for item in re.split(r"[\s,;]+" if are_numbers else ",", value.strip("[](){} ")) if item]
        if are_numbers and not all(re.fullmatch(r"[-+.\deE]+", item) for item in items):
            return None
        if items and not re.search(r"[\[\](){}'\"]", "".join(items)):
            written = f"[{', '.join(map(_item, items))}]"
            return f"write a list: {written if key is None else quote(f'{key}={written}')}"
    if isinstance(value, str):
        return _suggest_fix_of_text(value, words)
    if "text" in words and isinstance(value, bool | int | float):
        return "put it in quotes to make it text"
    if "a whole number" in words and isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"write {value:.0f}"
    return None


def _item(text: str) -> str:
    """An item of a list in YAML: in double quotes if it has an escape such as \\n, or the character itself."""
    has_escape = "\\" in text or not text.isprintable()
    return f'"{escape_control_chars(text)}"' if has_escape else text


def _suggest_minutes(key: str, value: object) -> str | None:
    """The number of minutes that a time such as 90s is, for a key that counts them."""
    seconds = parse_duration(value) if isinstance(value, str) and key.endswith("_minutes") else None
    return None if seconds is None else f"write {seconds / 60:.10g}"


def _suggest_null(key: str, value: object) -> str | None:
    """The meaning of null where 0 or -1 is refused, which turn things off elsewhere, or an empty list."""
    meaning = meaning_of_null(key) if value in (0, -1, []) and not isinstance(value, bool) else None
    return f"write null, which means: {meaning}" if meaning else None


def _suggest_fix_of_text(text: str, words: list[str]) -> str | None:
    word = text.strip().lower()
    if "true" in words and word in _YES_AND_NO:
        return f"write {_YES_AND_NO[word]}"
    if "null" in words and word in _NOTHING:
        return "write null"
    if {"a number", "a whole number"} & set(words):
        digits = plain_number(word, is_whole="a number" not in words)
        number = resolve_scalar(digits)
        if not isinstance(number, int | float):
            return None
        return f"write {digits}" + (", without quotes" if digits == text else "")
    if FOREIGN_VALUES.get(word) in words:
        return f"did you mean {FOREIGN_VALUES[word]}?"
    close = get_close_matches("cuda" if word.lower() == "gpu" else word, words, 1, 0.75)
    return f"did you mean {close[0]}?" if close else None


def plain_number(word: str, *, is_whole: bool) -> str:
    """`word` without what sets thousands apart, and with a point where a comma can only be one.

    k and M of a whole number, and percent of another, are written out.
    """
    if re.fullmatch(r"[1-9]\d{0,2}([_,]\d{3})+", word):
        return re.sub("[_,]", "", word)
    if re.fullmatch(r"-?0?,\d+", word):
        return word.replace(",", ".")
    if not is_whole and (percent := re.fullmatch(r"(\d{1,2}(\.\d+)?)\s*%", word)):
        return f"{float(percent[1]) / 100:g}"
    if is_whole and (unit := re.fullmatch(r"(\d{1,4})([km])", word)):
        return unit[1] + {"k": "000", "m": "000000"}[unit[2]]
    digits = re.sub(r"(?<=\d)_(?=\d)", "", word)
    return digits.lstrip("0") or "0" if digits.isdecimal() else digits


def _schema_of_item(schema: dict[str, Any], index: int) -> dict[str, Any]:
    lists = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") == "array"]
    items: list[dict[str, Any]] = lists[0].get("prefixItems", [])
    return items[index] if items else lists[0]["items"]


def look_up(values: dict[str, Any], path: KeyPath) -> Any:
    """The value at `path` of nested `values`."""
    value: Any = values
    for part in path:
        value = value[part]
    return value


def _place_of_disagreement(message: str, section: KeyPath, document: ParsedYaml) -> SourceLocation:
    """The key to blame of those that `message` names: one that is overridden, else the first one set."""
    locations = [document.locations[path] for path in _keys_in(message) if path in document.locations]
    overridden = [place for place in locations if place.line is None]
    return next(iter([*overridden, *locations]), document.location(section))


def _keys_in(message: str) -> list[KeyPath]:
    """The keys that `message` names."""
    return [tuple(key.split(".")) for key in re.findall(r"[a-z_]+\.[a-z_]+", message) if key in fields()]
