"""Limits on grammars, with which none takes more than a second or 300 MB to compile, or 50 ms for a mask.

What llguidance bounds by itself (lengths, counts, nesting, large numbers) is not bounded here again. Each limit stands
where compiling becomes slow, measured at 50,257 tokens.
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from gpt_cli.errors import RequestError

PARSER_LIMITS: dict[str, Any] = {
    "max_items_in_row": 500,
    "step_max_items": 5_000,
    "step_lexer_fuel": 100_000,
    "max_lexer_states": 50_000,
    "initial_lexer_fuel": 500_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
"""Limits of llguidance itself."""

_MAX_JSON = 65_536  # bytes of JSON schemas, or of choices
_MAX_SOURCE = 16_384  # bytes of a regular expression, or of a Lark grammar without its schemas
_MAX_INTERSECTIONS = 8  # `&` in a Lark grammar
_MAX_PROPERTIES = 1_000  # of an object
_MAX_COUNTED = 50  # properties of an object with minProperties or maxProperties: quadratic
_MAX_ITEMS = 10_000  # minItems and maxItems of a schema, added up: before 1.9 llguidance repeats the schema of items
_MAX_PATTERN_PROPERTIES = 64  # in a schema: all pairs are intersected
_MAX_PATTERNS = 8  # distinct regular expressions in a schema that intersects others: exponential
_MAX_MULTIPLE = 50_000  # least common multiple of every multipleOf, without decimal points: states of a lexer
_APPLICATORS = {"allOf", "anyOf", "oneOf", "$ref", "enum", "const"}
_ANNOTATIONS = {"title", "description", "default", "examples", "$defs", "definitions", "$comment", "$schema", "$id"}
_NUMBERS = ("const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_EXACT = 2**53  # up to here llguidance, which reads numbers as fp64, has every integer


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def check_limits(name: str, source: str) -> None:
    """Raise RequestError for the `source` of an option `name`, or of tools, that is beyond a limit."""
    if name == "json_schema":
        _check_schemas(name, [source])
        return
    is_lark = name in ("grammar", "tools")
    schemas = list(_inline_schemas(source)) if is_lark else []
    _check_schemas(name, schemas)
    size = len(source.encode()) - sum(len(schema.encode()) for schema in schemas)
    _check(name, "bytes", size, _MAX_JSON if name == "choices" else _MAX_SOURCE)
    if is_lark:
        intersections = source.count("&") - sum(schema.count("&") for schema in schemas)
        _check(name, "intersections (&)", intersections, _MAX_INTERSECTIONS)


def read_json(name: str, source: str) -> Any:
    """The value of JSON text. Raises RequestError, which begins with `name`."""
    try:
        return json.loads(source, parse_constant=_refuse_constant)
    except RecursionError:
        raise RequestError(f"{name}: nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"{name}: not JSON: {error}") from None


def _inline_schemas(lark: str) -> Iterator[str]:
    """The JSON object after each `%json`, also of one that stands in a string or in another object."""
    for place in re.finditer(r"%json\s*(?={)", lark):
        try:
            yield lark[place.end() : _DECODER.raw_decode(lark, place.end())[1]]
        except (ValueError, RecursionError):  # llguidance's error has the place
            continue


def _check_schemas(name: str, schemas: list[str]) -> None:
    _check(name, "bytes of JSON", sum(len(schema.encode()) for schema in schemas), _MAX_JSON)
    for schema in schemas:
        _check_nodes(name, list(_objects(read_json(name, schema))))


def _check_nodes(name: str, nodes: list[dict[str, Any]]) -> None:
    """Check the JSON objects of a schema; what is no schema among them is checked alike."""
    patterns = set[str]()
    pattern_properties, items, multiples, intersects = 0, 0, [Decimal(1)], False
    for node in nodes:
        properties, by_pattern = (_mapping(node, key) for key in ("properties", "patternProperties"))
        _check(name, "properties of an object", len(properties), _MAX_PROPERTIES)
        if "minProperties" in node or "maxProperties" in node:
            _check(name, "properties beside minProperties or maxProperties", len(properties), _MAX_COUNTED)
        pattern_properties += len(by_pattern)
        items += sum(max(0, node[key]) for key in ("minItems", "maxItems") if isinstance(node.get(key), int))
        patterns |= {*by_pattern, *(str(node[key]) for key in ("pattern", "format") if key in node)}
        multiple = node.get("multipleOf")
        if isinstance(multiple, int | float) and not isinstance(multiple, bool) and multiple:
            multiples.append(min(abs(Decimal(repr(multiple))), Decimal(10) ** 30))  # 1e999 is infinite
        _check_meaning(name, node)
        applied = _APPLICATORS & node.keys()
        beside = bool(applied and node.keys() - _APPLICATORS - _ANNOTATIONS - {"type"})
        several = isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1
        intersects |= len(applied) > 1 or beside or several or bool(properties and by_pattern)
    _check(name, "items by minItems and maxItems", items, _MAX_ITEMS)
    _check(name, "patternProperties", pattern_properties, _MAX_PATTERN_PROPERTIES)
    if intersects:
        _check(name, "patterns and formats where schemas are combined", len(patterns), _MAX_PATTERNS)
    exponent = max(0, *(-int(multiple.normalize().as_tuple().exponent) for multiple in multiples))
    _check(name, "decimal places of multipleOf", exponent, 9)
    common = math.lcm(*(int(multiple.scaleb(exponent)) for multiple in multiples))
    _check(name, "states of multipleOf", common, _MAX_MULTIPLE)


def _check_meaning(name: str, node: dict[str, Any]) -> None:
    """Refuse what llguidance would take for something else."""
    if "prefixItems" in node and "additionalItems" in node:  # it reads only the older one
        raise RequestError(f"{name}: additionalItems does not go with prefixItems; items is its name there")
    for keyword in _NUMBERS:
        for value in _scalars(node.get(keyword)):
            if isinstance(value, int) and abs(value) > _EXACT:
                raise RequestError(f"{name}: {keyword} has an integer beyond 2^53, which would be rounded")


def _scalars(value: Any) -> Iterator[Any]:
    """All values in a value that are neither lists nor objects."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict | list):
            stack += node.values() if isinstance(node, dict) else node
        else:
            yield node


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All JSON objects in a value."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
        if isinstance(node, dict | list):
            stack += node.values() if isinstance(node, dict) else node


def _mapping(node: dict[str, Any], key: str) -> dict[str, Any]:
    value = node.get(key)
    return value if isinstance(value, dict) else {}


def _check(name: str, counted: str, value: int, limit: int) -> None:
    if value > limit:
        raise RequestError(f"{name}: more than {limit:,} {counted}")
