"""200 JSON schemas that use every keyword that llguidance implements; `jsonschema` says what is valid.

Most are small enough that a random model finishes them: bounded strings, required properties. A name is a family and
what is particular about the schema.
"""

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]

WORD = {"type": "string", "pattern": "^[a-z]{1,8}$"}
SHORT = {"type": "string", "maxLength": 8}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")


def record(**properties: Any) -> Schema:
    """An object that has these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def listing(items: Any, least: int, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def types() -> Iterable[tuple[str, Schema]]:
    bounds = {"maxLength": 8, "maxItems": 2, "maxProperties": 2}
    for name in ("null", "boolean", "integer", "number", "string", "array", "object"):
        yield name, {"type": name, **bounds}
    for names in (
        ["string", "null"],
        ["integer", "null"],
        ["boolean", "integer"],
        ["array", "string"],
        ["null", "boolean", "number", "string"],
    ):
        yield " or ".join(names), {"type": names, **bounds}
    yield "any value", {}
    yield "any value of a property", record(value=True)
    yield "a property that is never there", {**record(here=DIGIT, gone=False), "required": ["here"]}


def integers() -> Iterable[tuple[str, Schema]]:
    for low, high in (
        (0, 9),
        (-5, 5),
        (100, 999),
        (-1000, -100),
        (0, 255),
        (7, 7),
        (1, 12),
        (-99_999, 3),
        (0, 10**9),
    ):
        yield f"{low} to {high}", {"type": "integer", "minimum": low, "maximum": high}
    yield "at least 95", {"type": "integer", "minimum": 95}
    yield "at most -12", {"type": "integer", "maximum": -12}
    yield "between 9 and 101", {"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 101}
    yield "both kinds of bounds", {"type": "integer", "minimum": 3, "exclusiveMinimum": 3, "maximum": 20}
    yield "bounds that are no integers", {"type": "integer", "minimum": 1.5, "maximum": 20.5}
    for factor in (2, 3, 5, 7, 10):
        yield f"multiple of {factor}", {"type": "integer", "multipleOf": factor, "minimum": -500, "maximum": 9_999}
    yield "multiple of 15 to 300", {"type": "integer", "multipleOf": 15, "minimum": 0, "maximum": 300}


def numbers() -> Iterable[tuple[str, Schema]]:
    for low, high in ((0, 1), (-1, 1), (0.5, 2.25), (-273.15, 1000), (0.001, 0.002)):
        yield f"{low} to {high}", {"type": "number", "minimum": low, "maximum": high}
    yield "above 0", {"type": "number", "exclusiveMinimum": 0}
    yield "between 0 and 1", {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    for factor in (0.5, 0.25, 2.5, 3):
        yield f"multiple of {factor}", {"type": "number", "multipleOf": factor, "minimum": 0, "maximum": 100}


def strings() -> Iterable[tuple[str, Schema]]:
    for least, most in ((0, 0), (1, 1), (0, 5), (3, 12), (20, 40)):
        yield f"{least} to {most} characters", {"type": "string", "minLength": least, "maxLength": most}
    yield "at least 2 characters", {"type": "string", "minLength": 2}
    yield "any", {"type": "string"}
    for pattern in (
        "^[a-z]{3}$",
        r"^\d{4}-\d{2}$",
        "^(red|green|blue)$",
        "^[A-Z][a-z]+( [A-Z][a-z]+)*$",
        r"^\w{1,5}$",
        r"^\S{2}\s\S{2}$",
        '^["\\\\]{2}$',
        "^é{1,3}ü?$",
        "^[^aeiou]{4}$",
        r"^-?(0|[1-9]\d*)(\.\d+)?$",
    ):
        yield f"pattern {pattern}", {"type": "string", "pattern": pattern}
    yield "pattern anywhere", {"type": "string", "pattern": "b", "maxLength": 12}
    yield "pattern at the start", {"type": "string", "pattern": "^a", "maxLength": 6}
    yield "pattern at the end", {"type": "string", "pattern": "z$", "maxLength": 6}
    yield "pattern and length", {"type": "string", "pattern": "^[a-z]+-[a-z]+$", "minLength": 6, "maxLength": 10}
    for name in FORMATS:
        bound = {} if name in ("date-time", "time", "date", "ipv4", "ipv6", "uuid") else {"maxLength": 24}
        yield f"format {name}", {"type": "string", "format": name, **bound}
    yield "format and pattern", {"type": "string", "format": "date", "pattern": "^20"}


def constants() -> Iterable[tuple[str, Schema]]:
    for value in (
        "text",
        "",
        'a "quote"\\\n',
        "é ü",
        0,
        -17,
        1.5,
        True,
        None,
        [],
        {},
        [1, [2, "b"], None],
        {"a": {"b": [True]}, "c": 1.5},
    ):
        yield f"const {value!r}", {"const": value}
    for values in (
        ["low", "medium", "high"],
        ["", "é", 'a"b', "a\\b", "a/b"],
        [1, 2, 30],
        [-1.5, 0, 2.25],
        [True, None],
        ["one", 1, 1.5, False, None, [1], {"a": 1}],
        [[], [[]], [[], []]],
        [{"kind": "a"}, {"kind": "b", "n": 1}],
        [f"value {number}" for number in range(100)],
        list(range(0, 500, 7)),
    ):
        yield f"enum {values!r:.40}", {"enum": values}
    yield "enum of one type", {"type": "string", "enum": ["a", "b", 1, None]}
    yield "enum within bounds", {"type": "integer", "enum": [1, 5, 10, 50], "minimum": 5}


def arrays() -> Iterable[tuple[str, Schema]]:
    for least, most in ((0, 0), (0, 3), (1, 1), (2, 4), (12, 12)):
        yield f"{least} to {most} digits", listing(DIGIT, least, most)
    yield "at least 2", {"type": "array", "items": DIGIT, "minItems": 2}
    yield "open", {"type": "array", "items": {"type": "boolean"}}
    yield "of any value", {"type": "array", "minItems": 1, "maxItems": 2}
    yield "of words", listing(WORD, 1, 3)
    yield "of records", listing(record(x=DIGIT, y=DIGIT), 1, 3)
    yield "of arrays", listing(listing(DIGIT, 2, 2), 2, 2)
    yield "of mixed items", listing({"type": ["integer", "null", "boolean"]}, 1, 4)
    yield "always empty", {"type": "array", "items": False}
    pair: Schema = {"type": "array", "prefixItems": [WORD, DIGIT]}
    yield "prefix", {**pair, "maxItems": 3}
    yield "prefix, all of it", {**pair, "minItems": 2, "items": False}
    yield "prefix, then items", {**pair, "minItems": 3, "maxItems": 5, "items": {"type": "boolean"}}
    yield "prefix of its own lengths", {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False}
    draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [WORD, DIGIT]}
    yield "draft 7: prefix", {**draft_7, "additionalItems": False, "minItems": 2}
    yield "draft 7: prefix, then items", {**draft_7, "additionalItems": {"type": "null"}, "minItems": 1, "maxItems": 4}


def objects() -> Iterable[tuple[str, Schema]]:
    yield "one property", record(a=DIGIT)
    yield "six properties", record(**dict.fromkeys("abcdef", DIGIT))
    yield "optional properties", {**record(**dict.fromkeys("abcdef", DIGIT)), "required": []}
    yield "some required", {**record(**dict.fromkeys("abcdef", DIGIT)), "required": ["b", "e"]}
    yield "open", {**record(a=DIGIT), "additionalProperties": True}
    yield "open by default", {"type": "object", "properties": {"a": DIGIT}, "required": ["a"]}
    yield "typed others", {**record(a=SHORT), "additionalProperties": {"type": "boolean"}}
    yield "required beyond properties", {"type": "object", "required": ["x", "y"], "additionalProperties": DIGIT}
    yield "empty", {"type": "object", "additionalProperties": False}
    yield "names to escape", record(**{'a "b"': DIGIT, "a\\b": DIGIT, "a/b": DIGIT, "": DIGIT})
    yield "unicode names", record(é=DIGIT, **{"ü ü": DIGIT})
    yield "names that begin alike", record(a=DIGIT, ab=DIGIT, abc=DIGIT)
    yield (
        "pattern names",
        {"type": "object", "patternProperties": {"^n_[a-z]{1,3}$": DIGIT}, "additionalProperties": False},
    )
    yield (
        "two patterns of names",
        {
            "type": "object",
            "patternProperties": {"^n_[a-z]$": DIGIT, "^b_[a-z]$": {"type": "boolean"}},
            "additionalProperties": False,
            "maxProperties": 4,
        },
    )
    yield (
        "properties and patterns",
        {
            "type": "object",
            "properties": {"n_a": {"maximum": 5}, "other": WORD},
            "patternProperties": {"^n_": DIGIT},
            "required": ["n_a", "other"],
            "additionalProperties": False,
        },
    )
    yield "map", {"type": "object", "additionalProperties": DIGIT, "maxProperties": 3}
    yield "map of one", {"type": "object", "additionalProperties": DIGIT, "minProperties": 1, "maxProperties": 1}
    yield "map that is not empty", {"type": "object", "additionalProperties": DIGIT, "minProperties": 1}
    yield (
        "at least one property",
        {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "minProperties": 1, "additionalProperties": False},
    )
    yield (
        "at most one property",
        {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "maxProperties": 1, "additionalProperties": False},
    )
    yield "more than required", {**record(a=DIGIT), "additionalProperties": DIGIT, "maxProperties": 2}
    yield "nested", record(a=record(b=record(c=record(d=DIGIT))))


def combined() -> Iterable[tuple[str, Schema]]:
    yield "anyOf types", {"anyOf": [DIGIT, WORD, {"type": "null"}]}
    yield "anyOf records", {"anyOf": [record(a=DIGIT), record(b=WORD)]}
    yield "anyOf that overlaps", {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 10}]}
    yield "anyOf beside type", {"type": "string", "anyOf": [{"maxLength": 3}, {"pattern": "^[a-z]{5,9}$"}]}
    yield "anyOf beside properties", {**record(a=DIGIT, b=DIGIT), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    yield "anyOf with false", {"anyOf": [False, DIGIT]}
    yield "allOf bounds", {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 30}]}
    yield (
        "allOf properties",
        {"allOf": [{"type": "object", "properties": {"a": DIGIT}, "required": ["a"]}, record(a={}, b=WORD)]},
    )
    yield "allOf patterns", {"type": "string", "allOf": [{"pattern": "^[a-z]{2,8}$"}, {"pattern": "^a"}]}
    yield "allOf multiples", {"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}
    yield "allOf of arrays", {"allOf": [listing(DIGIT, 1, 5), listing({"minimum": 4}, 0, 3)]}
    yield (
        "allOf with anyOf",
        {"allOf": [{"anyOf": [{"type": "integer"}, WORD]}, {"anyOf": [{"minimum": 7, "maximum": 70}, False]}]},
    )
    yield "oneOf types", {"oneOf": [DIGIT, WORD, {"type": "boolean"}]}
    yield "oneOf constants", {"oneOf": [{"const": name} for name in ("north", "east", "south", "west")]}
    yield (
        "oneOf by a tag",
        {
            "oneOf": [
                record(kind={"const": "circle"}, radius=DIGIT),
                record(kind={"const": "square"}, side=DIGIT),
                record(kind={"const": "point"}),
            ]
        },
    )
    yield "oneOf nullable", {"oneOf": [{"type": "null"}, record(a=DIGIT)]}
    yield "oneOf within oneOf", {"oneOf": [{"oneOf": [{"const": "a"}, {"const": "b"}]}, {"type": "null"}]}


def references() -> Iterable[tuple[str, Schema]]:
    yield "$defs", {**record(a={"$ref": "#/$defs/digit"}, b={"$ref": "#/$defs/digit"}), "$defs": {"digit": DIGIT}}
    yield "definitions", {**record(a={"$ref": "#/definitions/word"}), "definitions": {"word": WORD}}
    yield "to a property", record(a=WORD, b={"$ref": "#/properties/a"})
    yield "chain", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": DIGIT}}
    yield "names to escape", {"$ref": "#/$defs/a~1b~0c%25", "$defs": {"a/b~c%": DIGIT}}
    yield "beside keywords", {"$ref": "#/$defs/small", "minimum": 3, "$defs": {"small": DIGIT}}
    yield (
        "in allOf",
        {
            "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
            "$defs": {"a": {"type": "integer", "minimum": 0}, "b": {"maximum": 40}},
        },
    )
    yield "linked list", {**record(value=DIGIT, next={"anyOf": [{"type": "null"}, {"$ref": "#"}]})}
    yield (
        "binary tree",
        {"$ref": "#/$defs/tree", "$defs": {"tree": {"anyOf": [DIGIT, listing({"$ref": "#/$defs/tree"}, 2, 2)]}}},
    )
    yield (
        "tree of nodes",
        {
            "$ref": "#/$defs/node",
            "$defs": {"node": record(name=WORD, children=listing({"$ref": "#/$defs/node"}, 0, 2))},
        },
    )
    yield (
        "mutual recursion",
        {
            "$ref": "#/$defs/even",
            "$defs": {
                "even": {"anyOf": [{"type": "null"}, record(odd={"$ref": "#/$defs/odd"})]},
                "odd": record(even={"$ref": "#/$defs/even"}),
            },
        },
    )
    yield (
        "arithmetic",
        {
            "$ref": "#/$defs/expression",
            "$defs": {
                "expression": {"anyOf": [DIGIT, {"$ref": "#/$defs/operation"}]},
                "operation": {
                    "type": "array",
                    "prefixItems": [{"enum": ["+", "*"]}, DIGIT, {"$ref": "#/$defs/term"}],
                    "items": False,
                    "minItems": 3,
                },
                "term": {"anyOf": [DIGIT, {"$ref": "#/$defs/operation"}]},
            },
        },
    )


def notes() -> Iterable[tuple[str, Schema]]:
    """Keywords that constrain nothing."""
    yield (
        "of every kind",
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "https://example.org/person",
            "$comment": "for a test",
            "title": "Person",
            "description": "A person",
            "default": {"age": 1},
            "examples": [{"age": 2}],
            **record(age={**DIGIT, "readOnly": True, "title": "Age"}),
        },
    )
    yield (
        "keywords of another type",
        {"type": "integer", "minLength": 3, "items": False, "required": ["a"], "maximum": 99, "minimum": 0},
    )
    yield "keywords of nobody", {**DIGIT, "x-unit": "m", "ui": {"widget": "slider"}}


def records() -> Iterable[tuple[str, Schema]]:
    """What one would ask a model for."""
    yield "person", record(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 120})
    yield (
        "address",
        record(
            street=WORD,
            number={"type": "integer", "minimum": 1, "maximum": 999},
            zip={"type": "string", "pattern": "^[0-9]{5}$"},
        ),
    )
    yield (
        "sentiment",
        record(
            sentiment={"enum": ["positive", "neutral", "negative"]},
            score={"type": "number", "minimum": 0, "maximum": 1},
        ),
    )
    yield "classification", record(label={"enum": ["sports", "politics", "science"]}, reasons=listing(WORD, 1, 2))
    yield "answer", record(reasoning={"type": "string", "maxLength": 40}, answer=DIGIT)
    yield "call", record(name={"const": "weather"}, arguments=record(city=WORD, unit={"enum": ["C", "F"]}))
    yield (
        "one of two calls",
        {
            "anyOf": [
                record(name={"const": "add"}, arguments=record(a=DIGIT, b=DIGIT)),
                record(name={"const": "stop"}, arguments=record()),
            ]
        },
    )
    yield (
        "event",
        record(
            title=SHORT,
            date={"type": "string", "format": "date"},
            time={"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
        ),
    )
    yield (
        "order",
        record(
            id={"type": "string", "format": "uuid"},
            lines=listing(record(item=WORD, count={"type": "integer", "minimum": 1, "maximum": 20}), 1, 2),
        ),
    )
    yield (
        "invoice",
        record(
            total={"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 500},
            currency={"enum": ["EUR", "USD"]},
            paid={"type": "boolean"},
        ),
    )
    yield (
        "recipe",
        record(
            name=WORD,
            ingredients=listing(record(what=WORD, grams={"type": "integer", "minimum": 1, "maximum": 500}), 1, 3),
            steps=listing(SHORT, 1, 2),
        ),
    )
    yield (
        "point",
        record(
            type={"const": "Point"},
            coordinates={
                "type": "array",
                "prefixItems": [
                    {"type": "number", "minimum": -180, "maximum": 180},
                    {"type": "number", "minimum": -90, "maximum": 90},
                ],
                "minItems": 2,
                "items": False,
            },
        ),
    )
    yield (
        "colour",
        record(
            hex={"type": "string", "pattern": "^#[0-9a-f]{6}$"}, alpha={"type": "number", "minimum": 0, "maximum": 1}
        ),
    )
    yield (
        "user",
        record(
            login={"type": "string", "pattern": "^[a-z][a-z0-9_]{2,9}$"},
            email={"type": "string", "format": "email", "maxLength": 20},
        ),
    )
    yield (
        "server",
        record(
            host={"type": "string", "format": "ipv4"},
            port={"type": "integer", "minimum": 1, "maximum": 65535},
            tls={"type": "boolean"},
        ),
    )
    yield (
        "settings",
        {
            "type": "object",
            "properties": {
                "theme": {"enum": ["dark", "light"]},
                "size": {"type": "integer", "minimum": 8, "maximum": 32},
            },
            "additionalProperties": False,
        },
    )
    yield (
        "labels",
        {
            "type": "object",
            "patternProperties": {"^[a-z]{1,4}$": WORD},
            "additionalProperties": False,
            "maxProperties": 3,
        },
    )
    yield "entities", listing(record(text=SHORT, kind={"enum": ["person", "place"]}, start=DIGIT, end=DIGIT), 0, 2)
    yield (
        "chess move",
        record(
            source={"type": "string", "pattern": "^[a-h][1-8]$"},
            target={"type": "string", "pattern": "^[a-h][1-8]$"},
            promotes={"enum": ["q", "r", "b", "n", None]},
        ),
    )
    yield "table", record(columns=listing(WORD, 2, 2), rows=listing(listing(DIGIT, 2, 2), 1, 3))
    yield (
        "measurement",
        record(
            value={"type": "number", "minimum": 0, "maximum": 10},
            unit={"enum": ["m", "s", "kg"]},
            error={"anyOf": [{"type": "null"}, {"type": "number", "minimum": 0, "maximum": 1}]},
        ),
    )
    yield "message", record(role={"enum": ["user", "assistant"]}, content={"type": "string", "maxLength": 30})
    yield (
        "file tree",
        {
            "$ref": "#/$defs/entry",
            "$defs": {
                "entry": {
                    "oneOf": [
                        record(kind={"const": "file"}, size=DIGIT),
                        record(kind={"const": "folder"}, entries=listing({"$ref": "#/$defs/entry"}, 0, 2)),
                    ]
                }
            },
        },
    )
    yield "version", {"type": "string", "pattern": r"^(0|[1-9]\d{0,2})\.(0|[1-9]\d{0,2})\.(0|[1-9]\d{0,2})$"}


FAMILIES = (types, integers, numbers, strings, constants, arrays, objects, combined, references, notes, records)
SCHEMAS: dict[str, Any] = {f"{family.__name__}: {name}": schema for family in FAMILIES for name, schema in family()}
