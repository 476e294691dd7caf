"""`section.key=value` on the command line, laid over what the file says."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpt_cli.config.diagnostics import Diagnostic, KeyPath, SourceLocation
from gpt_cli.config.keys import accepted_types, fields, schema_of, sections, suggest
from gpt_cli.config.removed import is_removed
from gpt_cli.config.yaml_subset import ConfigSyntaxError, ParsedYaml, invalid_char_reason, read_value, resolve_scalar


def apply_overrides(document: ParsedYaml, overrides: Sequence[str]) -> ParsedYaml:
    """A new document in which each override has taken the place of what stood there; the last one wins.

    A value in quotes, or in brackets where a list may stand, is read as YAML. Any other is taken as it is: text
    for a key that takes text, so that `sample.prompt=1984` needs no quotes in quotes, else a plain scalar. null is
    null.
    """
    for override in overrides:
        document = _apply(document, override)
    return document


def sets_null(override: str) -> bool:
    """True if the value of `section.key=value` is null, in any of its spellings."""
    text = override.partition("=")[2].strip()
    return text != "" and resolve_scalar(text) is None


def _apply(document: ParsedYaml, override: str) -> ParsedYaml:
    place = SourceLocation(f"override {override!r}")
    key, equals, text = override.partition("=")
    try:
        if not equals or not key:
            raise ConfigSyntaxError(
                Diagnostic("an override needs a key, '=' and a value", place, "such as train.steps=500")
            )
        if key in sections():
            raise ConfigSyntaxError(Diagnostic(f"{key} is a section", place, _example(key)))
        path: KeyPath = tuple(key.split("."))
        if is_removed(key):
            return _put(document, path, resolve_scalar(text), place)
        if key not in fields():
            raise ConfigSyntaxError(Diagnostic(f"{key} is not a key", place, suggest(path, text)))
        value = _read(key, text, place)
    except ConfigSyntaxError as error:
        return replace(document, problems=(*document.problems, error.problem))
    return _put(document, path, value, place)


def _example(section: str) -> str:
    key = next(key for key in fields() if key.startswith(f"{section}."))
    return f"override one of its keys, such as {key}=..."


def _read(key: str, text: str, place: SourceLocation) -> Any:
    words = accepted_types(schema_of(key))
    if flaw := invalid_char_reason(text):
        raise ConfigSyntaxError(Diagnostic(f"{key} {flaw}", place))
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    listed = text.startswith("[") and text.endswith("]") and any(word.startswith("a list") for word in words)
    if quoted or listed:
        return read_value(text, place)
    value = resolve_scalar(text.strip())
    is_null = value is None and text and ("null" in words or text.strip() == "null")  # else refused: it may be meant
    return text if "text" in words and not is_null else value


def _put(document: ParsedYaml, path: KeyPath, value: Any, place: SourceLocation) -> ParsedYaml:
    values: dict[str, Any] = dict(document.values)
    *around, name = map(str, path)
    if around:
        section = values.get(around[0])
        if not isinstance(section, dict | None):
            return document  # which is reported: the section is none
        values[around[0]] = {**(section or {}), name: value}
    else:
        values[name] = value
    # What stood there is gone, and with it the locations of its items and its problems.
    locations = {one: location for one, location in document.locations.items() if one[: len(path)] != path}
    problems = tuple(problem for problem in document.problems if problem.path != path)
    return replace(document, values=values, locations={**locations, path: place}, problems=problems)
