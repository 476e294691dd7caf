"""Constraints that are small to send and would be large or slow to compile, or deep enough to overflow a stack.

    python -m tests.support.hostile_grammars SECONDS

compiles each, in a process of its own, and writes 200 tokens under it. Prints a JSON object of outcomes by name: `rc`
is 0, 1 where it was refused, or negative for a signal; `peak` is in MB, without what the process had before.
"""

import json
import os
import resource
import sys
import tempfile
from typing import Any

import numpy as np

from gpt_cli.errors import RequestError
from gpt_cli.sampling.constraint import compile_constraint
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.tokenizer import ByteTokenizer
from tests.support.memory import peak_kilobytes

Options = dict[str, Any]
OPEN = {"type": "object", "additionalProperties": False}
HUGE = '{"type": "integer", "multipleOf": 1000003}'


def nested(depth: int, opening: str, closing: str, innermost: str = "{}") -> str:
    return opening * depth + innermost + closing * depth


def chain(n: int, depth: int, opening: str, closing: str) -> str:
    """`n` definitions, each of which leads to the next from the inside of `depth` schemas."""
    links = (f'"{i}":' + nested(depth, opening, closing, f'{{"$ref":"#/$defs/{i + 1}"}}') for i in range(n))
    return f'{{"$ref":"#/$defs/0","$defs":{{{",".join(links)},"{n}":{{}}}}}}'


def rules(n: int, form: str, last: str) -> str:
    """A Lark grammar whose rule or terminal number i is `form`, in which X is the name of the next."""
    kind = "RULE" if "TERMINAL" in form else "rule"
    form = form.replace("TERMINAL", "X")
    links = [f"{kind}{i}: {form.replace('X', f'{kind}{i + 1}')}" for i in range(n)]
    return "\n".join([f"start: {kind}0", *links, f"{kind}{n}: {last}"])


def numbered(n: int, value: Any, form: str = "k%d") -> dict[str, Any]:
    return {form % i: value for i in range(n)}


def any_of(n: int, name: str) -> Options:
    return {
        "anyOf": [{**OPEN, "properties": {f"{name}{i}": {"const": 1}}, "required": [f"{name}{i}"]} for i in range(n)]
    }


SCHEMAS: dict[str, Any] = {
    "1,000 arrays in each other": nested(1000, '{"items":', "}"),
    "a chain of 2,000 references": chain(2000, 0, "", ""),
    "chains of items": chain(54, 110, '{"items":', "}"),
    "chains of properties": chain(42, 55, '{"properties":{"":', "}}"),
    "chains of prefixItems": chain(54, 55, '{"prefixItems":[', "]}"),
    "chains of anyOf": chain(82, 55, '{"anyOf":[', "]}"),
    "a reference to itself": {"$ref": "#"},
    "references to each other": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#"}}},
    "all references to all": {
        "$ref": "#/$defs/d0",
        "$defs": numbered(30, {"anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(30)]}, "d%d"),
    },
    "recursive trees intersected": {
        "allOf": [{"$ref": "#/$defs/t0"}, {"$ref": "#/$defs/t1"}],
        "$defs": {f"t{i}": {"type": "object", "properties": {"c": {"$ref": f"#/$defs/t{i}"}}} for i in range(2)},
    },
    "100,000 numbers": {"enum": list(range(100_000))},
    "10,000 objects": {"enum": [{"a": i} for i in range(10_000)]},
    "2,500 objects": {"enum": [{"a": i} for i in range(2500)]},
    "a constant of 1 MB": {"const": "x" * 1_000_000},
    "maxLength": {"type": "string", "maxLength": 10**9},
    "maxLength beyond 2^32": {"type": "string", "maxLength": 2**32},
    "minItems": {"type": "array", "items": {"type": "integer"}, "minItems": 10**8},
    "maxItems": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**8},
    "maxItems 10,000": {"type": "array", "items": {"type": "integer"}, "maxItems": 10_000},
    "maxItems behind a negative one": {
        "examples": [{"minItems": -(10**9)}],
        **{"type": "array", "items": {"type": "integer"}, "maxItems": 10**9},
    },
    "1,000 lists": {
        "type": "array",
        "prefixItems": [{"items": {"type": "integer"}, "maxItems": 10} for _ in range(1000)],
    },
    "maxProperties": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 10**8},
    "10,000 properties": {**OPEN, "properties": numbered(10_000, {"type": "integer"})},
    "7,000 short properties": {"properties": numbered(7000, {}, "%d")},
    "1,000 properties, each optional": {**OPEN, "properties": numbered(1000, {"type": "integer"})},
    "1,000 properties, at least one": {**OPEN, "properties": numbered(1000, {"type": "integer"}), "minProperties": 1},
    "50 properties, at least one": {**OPEN, "properties": numbered(50, {"type": "integer"}), "minProperties": 1},
    "1,000 patternProperties": {**OPEN, "patternProperties": numbered(1000, {"type": "integer"}, "^k%d_")},
    "64 patternProperties": {**OPEN, "patternProperties": numbered(64, {"type": "integer"}, "^k%d_")},
    "patternProperties intersected again and again": {
        "allOf": [{"patternProperties": numbered(30, True, "^k%d_")}] + [{"minProperties": 0}] * 1000
    },
    "30 patterns at once": {"type": "string", "allOf": [{"pattern": f"a.*{i}"} for i in range(30)]},
    "8 patterns at once": {"type": "string", "allOf": [{"pattern": f"a.*{i}"} for i in range(8)]},
    "a cross product": {"allOf": [any_of(2, f"a{i}_") for i in range(20)]},
    "a product of two lists": {"allOf": [any_of(40, "a"), any_of(40, "b")]},
    "300 arrays that begin alike": {
        "anyOf": [{"type": "array", "items": {"type": "string", "minLength": i}} for i in range(300)]
    },
    "700 kinds of an object": {
        "oneOf": [{"type": "object", "properties": {"k": {"const": f"v{i}"}}, "required": ["k"]} for i in range(700)]
    },
    "multipleOf": HUGE,
    "multipleOf of primes": {"type": "integer", "allOf": [{"multipleOf": 997}, {"multipleOf": 1009}]},
    "multipleOf 49,999": {"type": "integer", "multipleOf": 49_999},
    "multipleOf 1e-300": {"type": "number", "multipleOf": 1e-300},
    "bounds of 400 digits": {"type": "integer", "minimum": 0, "maximum": 10**400},
    "bounds of 1e308": {"type": "number", "minimum": -1e308, "maximum": 1e308},
    "an infinite constant": '{"const": 1e999}',
    "a number of 5,000 digits": '{"const": %s}' % ("9" * 5000),
}
PATTERNS = (
    "(a{1000}){1000}",
    ".{0,100000}",
    "(x+x+)+y",
    "[ab]*a[ab]{100}",
    r"(\w+\s?){50}",
    "(a{0,50}){0,50}",
    r"(\p{L}{50}){50}",
    "(" * 5000 + "a" + ")" * 5000,
    "x*" * 500,
    "|".join(f".*a.{{{i}}}" for i in range(200)),
    "a" * 100_000,
)
GRAMMARS = {
    "ambiguous pairs": 'start: s\ns: s s | "a"',
    "ambiguous triples": 'start: s s s s s s s s\ns: s s s | "a" |',
    "ambiguous terminals": "start: ("
    + "|".join(f"A{i}" for i in range(200))
    + ")*\n"
    + "\n".join(f"A{i}: /[a-z]*{i}[a-z]*/" for i in range(200)),
    "rules that double": rules(30, "X X", '"a"'),
    "empty rules that double": rules(30, "X X", '"a" |'),
    "500 rules": rules(500, '"a" X | "b"', '"e"'),
    "100,000 rules": rules(100_000, '"a" X | "b"', '"e"'),
    "rules of parentheses": rules(150, "(" * 28 + "X" + ")?" * 28, '"e"'),
    "rules of brackets": rules(200, "[" * 28 + "X" + "]" * 28, '"e"'),
    "500 terminals": rules(500, '("a" TERMINAL)* | "b"', '"e"'),
    "a repetition of repetitions": 'start: ((("a"|x){0,50}){0,50}){0,50}\nx: "b"',
    "500 optional rules": "start: " + "r? " * 500 + '\nr: "a" | "b"',
    "30 intersections": "start: T\nT: " + " & ".join(f"/.*a.*{i}.*/" for i in range(30)),
    "a schema": f"start: %json {HUGE}",
    "a schema behind a string": f'start: "%json " %json {HUGE}',
    "a schema behind an object in a string": f'start: "%json {{" ":" %json {HUGE}',
    "a schema that names itself": 'start: %json {"a": "%json", ' + HUGE[1:],
    "a rule that is itself": "start: start",
    "no end": 'start: "a" start',
}
CASES: dict[str, Options] = {
    **{f"json_schema: {name}": {"json_schema": schema} for name, schema in SCHEMAS.items()},
    **{f"pattern: {text:.20}": {"json_schema": {"type": "string", "pattern": text}} for text in PATTERNS},
    **{f"regex: {text:.20}": {"regex": text} for text in PATTERNS},
    **{f"grammar: {name}": {"grammar": text} for name, text in GRAMMARS.items()},
    "choices": {"choices": [f"choice {i}" for i in range(50_000)]},
}


def write(options: Options) -> None:
    """Compile a constraint and write random tokens under it. Raises RequestError."""
    tokenizer = ByteTokenizer()
    constraint = compile_constraint(tokenizer, SamplingParams().replace(options))  # type: ignore[arg-type]
    assert constraint is not None
    random = np.random.default_rng(0)
    matcher = constraint.matcher()
    token = 0
    for _ in range(200):
        mask = matcher.mask()
        if matcher.finished or matcher.stuck:
            return
        if mask is not None:  # else the text may end: try to repeat its last token
            token = int(random.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))))
        matcher.accept(token)


def outcome(options: Options, seconds: int) -> dict[str, Any]:
    with tempfile.TemporaryFile() as report:
        process = os.fork()
        if process == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            before, code = peak_kilobytes(), 99
            try:
                write(options)
                code = 0
            except RequestError:
                code = 1
            finally:
                report.write(str((peak_kilobytes() - before) / 1e3).encode())
                report.flush()
                os._exit(code)
        _, status, used = os.wait4(process, 0)
        report.seek(0)
        peak = float(report.read() or "inf")
        return {"rc": os.waitstatus_to_exitcode(status), "peak": peak, "cpu": used.ru_utime + used.ru_stime}


if __name__ == "__main__":
    write({"json_schema": {}})  # imports what they need
    json.dump({name: outcome(options, int(sys.argv[1])) for name, options in CASES.items()}, sys.stdout)
