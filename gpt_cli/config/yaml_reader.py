"""The part of YAML a config is written in, read with the place of every key and value.

Mappings, lists and scalars, without anchors, aliases, tags and second documents. Plain scalars mean what YAML 1.2 says
and a reader expects: `3e-4` is a number; `no`, `1:30` and `0777` are text. PyYAML composes the nodes and nothing else:
no constructor runs, and depth and size are bounded.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import yaml

from gpt_cli.errors import join_or
from gpt_cli.terminal.escape import escape_control_chars, shorten

KeyPath = tuple[str | int, ...]
"""A key, with the index of an item behind the key of a list: `("optim", "betas", 1)`."""

SIZE_LIMIT = 1_000_000
DEPTH_LIMIT = 20
MAX_SHOWN = 60  # columns of a key or a value in a message

_SCALARS: tuple[tuple[re.Pattern[str], Callable[[str], bool | int | float | None]], ...] = (
    (re.compile(r"~|null|Null|NULL|"), lambda _: None),
    (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    (re.compile(r"[-+]?(0|[1-9][0-9]{0,99})"), int),
    (re.compile(r"(?![-+]?[0-9]+\Z)[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
)
"""The meaning of an unquoted scalar by its form: YAML 1.2's core schema, but whole numbers only in plain decimal."""
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_REFUSED = {"*": "an alias", "&": "an anchor", "!": "a tag"}


@dataclass(frozen=True)
class SourceLocation:
    """A location in a file (line and column from 1), or in an override, which has neither."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        source = escape_control_chars(self.source)
        return source if self.line is None else f"{source}:{self.line}:{self.column}"


@dataclass(eq=False)
class ConfigError(Exception):
    """One thing that is wrong. `path` is the key it makes unusable: further errors of that key are suppressed."""

    message: str
    place: SourceLocation
    keys: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    path: KeyPath | None = None

    def __str__(self) -> str:
        meant = f"; did you mean {join_or(self.choices)}?" if self.choices else ""
        return escape_control_chars(f"{self.place}: {self.message}{meant}")


@dataclass(frozen=True)
class ParsedYaml:
    """A parsed YAML text with locations; `problems` are those that did not stop the parser."""

    name: str
    values: dict[str, Any]
    keys: dict[KeyPath, SourceLocation] = field(default_factory=dict)
    locations: dict[KeyPath, SourceLocation] = field(default_factory=dict)
    problems: tuple[ConfigError, ...] = ()

    def location(self, path: KeyPath) -> SourceLocation:
        """The location of the value of `path`, or of its nearest parent."""
        while path and path not in self.locations:
            path = path[:-1]
        return self.locations.get(path, SourceLocation(self.name))

    def value(self, path: KeyPath) -> Any:
        value: Any = self.values
        for part in path:
            value = value[part]
        return value

    def put(self, path: KeyPath, value: Any, place: SourceLocation) -> "ParsedYaml":
        """The document with another value, of `place`; what stood there is gone, and its problems with it."""
        first, *rest = map(str, path)
        inner = self.values.get(first, {})
        if rest and not isinstance(inner, dict):
            return self  # which is reported: the section is none
        values = {first: {**inner, rest[0]: value} if rest else value}
        locations = {one: location for one, location in self.locations.items() if one[: len(path)] != path}
        problems = tuple(problem for problem in self.problems if problem.path != path)
        return replace(self, values={**self.values, **values}, locations={**locations, path: place}, problems=problems)


@lru_cache(maxsize=8)  # 11 ms for the config of a run, which is compared more than once
def read_document(text: str, name: str) -> ParsedYaml:
    """Read a mapping of keys to values. Raises a ConfigError if there is none."""
    reader = _NodeReader(SourceLocation(name, 1, 1))
    values = reader.read(text)
    if not isinstance(values, dict | None):
        raise ConfigError("a config consists of keys with values, like `seed: 1`", reader.start)
    return ParsedYaml(name, values or {}, reader.keys, reader.locations, tuple(reader.problems))


def read_value(text: str, place: SourceLocation) -> Any:
    """The value of one scalar or list that stands at `place`. Raises a ConfigError."""
    reader = _NodeReader(place)
    value = reader.read(text)
    if reader.problems:
        raise reader.problems[0]
    return value


def resolve_scalar(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar."""
    return next((read(text) for form, read in _SCALARS if form.fullmatch(text)), text)


def key_name(path: KeyPath) -> str:
    """The key as it is named in messages and overrides."""
    return shorten(".".join(map(str, path)), MAX_SHOWN) or "the config"


def invalid_char_reason(text: str) -> str | None:
    """Why no file could hold `text`: NUL, or half of a surrogate pair (also what a non-UTF-8 argument becomes)."""
    unfit = _NO_TEXT.search(text)
    return None if unfit is None else f"holds U+{ord(unfit.group()):04X}, which is not text"


class _Composer(yaml.SafeLoader):
    """Composes nodes of bounded depth; `refused` has the sign of what a node has and a config cannot have."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        signs = {"&": getattr(event, "anchor", None), "!": getattr(event, "tag", None)}
        is_alias = isinstance(event, yaml.AliasEvent)
        refused = "*" if is_alias else next((sign for sign, value in signs.items() if value is not None), None)
        if self.depth > DEPTH_LIMIT and isinstance(event, yaml.CollectionStartEvent):
            problem = f"nested more than {DEPTH_LIMIT} deep"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)  # type: ignore[arg-type]
        self.depth += 1
        if is_alias:
            self.get_event()  # type: ignore[no-untyped-call]
            node: Any = yaml.ScalarNode("", "", event.start_mark, event.end_mark)
        else:
            node = super().compose_node(parent, index)
        self.depth -= 1
        node.refused = refused
        return node  # type: ignore[no-any-return]


class _NodeReader:
    """Builds values from nodes, noting locations; what can be skipped becomes a problem."""

    def __init__(self, start: SourceLocation) -> None:
        self.start = start
        self.keys: dict[KeyPath, SourceLocation] = {}
        self.locations: dict[KeyPath, SourceLocation] = {}
        self.problems: list[ConfigError] = []

    def read(self, text: str) -> Any:
        if len(text) > SIZE_LIMIT:
            raise ConfigError(f"more than {SIZE_LIMIT:,} characters: this is not a config", self.start)
        composer = None
        try:
            composer = _Composer(text)
            node = composer.get_single_node()
        except yaml.reader.ReaderError as error:
            before = text[: error.position].split("\n")
            reason, place = f"{error.reason}: U+{error.character:04X}", (len(before) - 1, len(before[-1]))
            raise ConfigError(f"not valid YAML: {reason}", self._location(*place)) from error
        except yaml.MarkedYAMLError as error:
            mark: Any = error.problem_mark
            if error.context_mark is not None and mark.index == len(text):  # the beginning of what has no end
                mark = error.context_mark
            reason = error.problem or ""
            if isinstance(error, yaml.composer.ComposerError):  # whose problem needs its context
                reason = f"{error.context}, {reason}"
            raise ConfigError(f"not valid YAML: {reason}", self._location(mark.line, mark.column)) from error
        except Exception as error:  # PyYAML lets ValueError and others through, as for "\U00110000"
            place = (0, 0) if composer is None else (composer.line, composer.column)
            raise ConfigError(f"not valid YAML: {error}", self._location(*place)) from error
        return None if node is None else self._value(node, ())

    def _value(self, node: Any, path: KeyPath) -> Any:
        place = self._at(node)
        self.locations.setdefault(path, place)
        self._note_refused(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if flaw := invalid_char_reason(node.value):
            self.problems.append(ConfigError(f"{key_name(path)} {flaw}", place, path=path))
            return None
        return resolve_scalar(node.value) if node.style is None else node.value

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place, is_word = self._at(key_node), isinstance(key_node, yaml.ScalarNode)
            key = key_node.value if is_word else "?"
            child = (*path, key)
            self._note_refused(key_node, child)
            if not is_word:
                self.problems.append(ConfigError("a key has to be a word", place, path=child))
            elif key in mapping:
                first = self.keys[child]
                self.problems.append(ConfigError(f"{key_name(child)} is given twice, first at {first}", place))
            self.keys.setdefault(child, place)
            mapping.setdefault(key, self._value(value_node, child))
        return mapping

    def _note_refused(self, node: Any, path: KeyPath) -> None:
        """Note what would make a value stand for another one or for an object."""
        if (sign := node.refused) is not None:
            message = f"{key_name(path)} has {_REFUSED[sign]} ({sign}), which a config cannot have"
            self.problems.append(ConfigError(message, self._at(node), path=path))

    def _at(self, node: yaml.Node) -> SourceLocation:
        return self._location(node.start_mark.line, node.start_mark.column)

    def _location(self, line: int, column: int) -> SourceLocation:
        return self.start if self.start.line is None else SourceLocation(self.start.source, line + 1, column + 1)
