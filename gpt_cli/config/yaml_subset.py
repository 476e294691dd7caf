"""The part of YAML a config is written in, read with the place of every key and value.

Mappings, lists and scalars, without anchors, aliases, tags, merge keys and second documents. Plain scalars
mean what YAML 1.2 says and a reader expects: `3e-4` is a number; `no`, `1:30` and `0777` are text. PyYAML
supplies the events and nothing else: no constructor runs, and depth and size are bounded.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpt_cli.config.diagnostics import Diagnostic, KeyPath, SourceLocation, key_name

SIZE_LIMIT = 1_000_000
DEPTH_LIMIT = 20

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,99})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DIGITS = re.compile(r"[-+]?[0-9]+")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")

_INDENTATION = "check the indentation, and the quotes around text that contains ': '"
_EXPLANATIONS = (
    # what PyYAML says, what it means, what to do about it
    ("found character '\\t'", "a tab where only spaces may stand", "indent with spaces"),
    ("cannot start any token", "a character that cannot begin a value", "put the text in quotes"),
    ("found unknown escape", "an escape that YAML does not have", "in double quotes, a backslash is \\\\"),
    ("mapping values are not allowed", "a ':' that belongs to no key", _INDENTATION),
    ("while scanning a quoted scalar", "a quote that is never closed", None),
    ("while scanning a simple key", "a key without a ':' behind it", None),
    ("while parsing a flow sequence", "a list that is not closed with ']'", None),
    ("while parsing a flow mapping", "a mapping that is not closed with '}'", None),
    ("expected the node content", "a value is missing here", None),
    ("expected <block end>", "this does not continue what stands above", _INDENTATION),
    ("expected '<document start>'", "this does not continue what stands above", _INDENTATION),
)


class ConfigSyntaxError(Exception):
    """The text cannot be read on: it is no YAML, or none that belongs in a config."""

    def __init__(self, problem: Diagnostic) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True)
class ParsedYaml:
    """A parsed YAML text with locations; `problems` are those that did not stop the parser."""

    name: str
    values: dict[str, Any]
    keys: dict[KeyPath, SourceLocation] = field(default_factory=dict)
    locations: dict[KeyPath, SourceLocation] = field(default_factory=dict)
    problems: tuple[Diagnostic, ...] = ()

    def location(self, path: KeyPath) -> SourceLocation:
        """The location of the value of `path`, or of its nearest parent."""
        while path and path not in self.locations:
            path = path[:-1]
        return self.locations.get(path, SourceLocation(self.name))


def read_document(text: str, name: str) -> ParsedYaml:
    """Read a mapping of keys to values. Raises ConfigSyntaxError if there is none."""
    reader = _YamlReader(text, SourceLocation(name, 1, 1))
    values = reader.read()
    if not isinstance(values, dict | None):
        raise ConfigSyntaxError(Diagnostic("a config consists of keys with values, like `seed: 1`", reader.start))
    return ParsedYaml(name, values or {}, reader.keys, reader.locations, tuple(reader.problems))


def read_value(text: str, place: SourceLocation) -> Any:
    """The value of one scalar or list that stands at `place`. Raises ConfigSyntaxError."""
    reader = _YamlReader(text, place)
    value = reader.read()
    if reader.problems:
        raise ConfigSyntaxError(reader.problems[0])
    return value


def resolve_scalar(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar: YAML 1.2's core schema, but whole numbers only in plain decimal."""
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not _DIGITS.fullmatch(text):
        return float(text)
    return float(text.replace(".", "")) if _NOT_FINITE.fullmatch(text) else text


def invalid_char_reason(text: str) -> str | None:
    """Why no file could hold `text`: NUL, or half of a surrogate pair (also what a non-UTF-8 argument becomes)."""
    unfit = _NO_TEXT.search(text)
    return None if unfit is None else f"holds U+{ord(unfit.group()):04X}, which is not text"


class _YamlReader:
    """Builds values from PyYAML's events, noting locations; what can be skipped becomes a problem."""

    def __init__(self, text: str, start: SourceLocation) -> None:
        self.start = start
        self.keys: dict[KeyPath, SourceLocation] = {}
        self.locations: dict[KeyPath, SourceLocation] = {}
        self.problems: list[Diagnostic] = []
        if len(text) > SIZE_LIMIT:
            raise ConfigSyntaxError(Diagnostic(f"more than {SIZE_LIMIT:,} characters: this is no config", start))
        try:
            self.parser = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            before = text[: error.position].split("\n")
            place = self._location(len(before) - 1, len(before[-1]))
            raise ConfigSyntaxError(
                Diagnostic(f"not valid YAML: it cannot hold the character U+{error.character:04X}", place)
            ) from error

    def read(self) -> Any:
        """The value of the first document, which has to be the only one."""
        self._next()  # the start of the stream
        if isinstance(self._next(), yaml.StreamEndEvent):
            return None
        value = self._value(self._next(), (), 0)
        self._next()  # the end of the document
        if not isinstance(event := self._next(), yaml.StreamEndEvent):
            self.problems.append(Diagnostic("a second document: a config is one", self._at(event)))
        return value

    def _next(self) -> yaml.Event:
        try:
            event: yaml.Event = self.parser.get_event()  # type: ignore[no-untyped-call]
        except yaml.MarkedYAMLError as error:
            raise ConfigSyntaxError(self._explain(error)) from error
        except Exception as error:  # PyYAML lets ValueError and others through, as for "\U00110000"
            place = self._location(self.parser.line, self.parser.column)
            raise ConfigSyntaxError(Diagnostic(f"not valid YAML: this cannot be read ({error})", place)) from error
        return event

    def _value(self, event: yaml.Event, path: KeyPath, depth: int) -> Any:
        place = self._at(event)
        if depth > DEPTH_LIMIT:
            raise ConfigSyntaxError(Diagnostic(f"nested more than {DEPTH_LIMIT} deep", place))
        self.locations.setdefault(path, place)
        self._refuse_properties(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(path, depth)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path, depth)
        return self._scalar(event, path, place) if isinstance(event, yaml.ScalarEvent) else None

    def _scalar(self, event: yaml.ScalarEvent, path: KeyPath, place: SourceLocation) -> Any:
        if flaw := invalid_char_reason(event.value):
            self.problems.append(Diagnostic(f"{key_name(path)} {flaw}", place, path=path))
            return None
        return resolve_scalar(event.value) if event.style is None else event.value

    def _list(self, path: KeyPath, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items)), depth + 1))
        return items

    def _mapping(self, path: KeyPath, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key, place = self._key(event, path, depth), self._at(event)
            child = (*path, key)
            if key in mapping:
                first = self.keys[child]
                self.problems.append(Diagnostic(f"{key_name(child)} is given twice, first at {first}", place))
            self.keys.setdefault(child, place)
            value = self._value(self._next(), child, depth + 1)
            mapping.setdefault(key, value)
        return mapping

    def _key(self, event: yaml.Event, path: KeyPath, depth: int) -> str:
        if isinstance(event, yaml.ScalarEvent):
            self._refuse_properties(event, (*path, event.value))
            return event.value
        path = (*path, "?")
        self._value(event, path, depth + 1)
        self.problems.append(Diagnostic("a key has to be a word", self._at(event), path=path))
        return "?"

    def _refuse_properties(self, event: yaml.Event, path: KeyPath) -> None:
        """Note what would make a value stand for another one or for an object."""
        for present, feature, sign in (
            (isinstance(event, yaml.AliasEvent), "an alias", "*"),
            (isinstance(event, yaml.NodeEvent) and event.anchor is not None, "an anchor", "&"),
            (getattr(event, "tag", None) is not None, "a tag", "!"),
        ):
            if present:
                message = f"{key_name(path)} has {feature} ({sign}), which a config cannot have"
                hint = f"put text that begins with {sign} in quotes"
                self.problems.append(Diagnostic(message, self._at(event), hint, path))
                return

    def _explain(self, error: yaml.MarkedYAMLError) -> Diagnostic:
        message = f"{error.context} {error.problem}"
        explanations = ((meaning, hint) for words, meaning, hint in _EXPLANATIONS if words in message)
        meaning, hint = next(explanations, (error.problem, None))
        mark = error.context_mark if "a quoted scalar" in message else error.problem_mark
        place = self.start if mark is None else self._location(mark.line, mark.column)
        return Diagnostic(f"not valid YAML: {meaning}", place, hint)

    def _at(self, event: yaml.Event) -> SourceLocation:
        mark = event.start_mark
        return self.start if mark is None else self._location(mark.line, mark.column)

    def _location(self, line: int, column: int) -> SourceLocation:
        if self.start.line is None:
            return self.start
        return SourceLocation(self.start.source, line + 1, column + 1)
