"""Text under a JSON schema: what is finished is valid, by `jsonschema`; what cannot be followed is refused by name."""

import json
import re
from decimal import Decimal
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

import gpt_cli
from gpt_cli.config import Config, TokenizerConfig
from gpt_cli.errors import RequestError
from gpt_cli.run.checkpoint import save
from gpt_cli.sampling import Sampler, SamplingParams
from gpt_cli.sampling.constraint import compile_constraint
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer, train_tokenizer
from tests.support.json_schemas import FORMATS, SCHEMAS, record
from tests.support.tiny_gpt import make_model

CHARACTERS = "".join(map(chr, range(32, 127))) + "\néü"
CHAR = CharTokenizer(CHARACTERS)
RECORDS = [
    json.dumps(
        {"name": f"Zoë {i}", "age": i, "on": f"2024-01-{i % 28 + 1:02}", "tags": ["red", i % 2 == 0]},
        ensure_ascii=False,
    )
    for i in range(200)
]
TOKENIZERS = {
    "char": CHAR,
    "bpe": train_tokenizer([CHARACTERS, *RECORDS], TokenizerConfig(kind="bpe", vocab_size=450)),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sampler:
    """A model of random weights, with characters or a BPE of 450 tokens."""
    tokenizer = TOKENIZERS[request.param]
    model = make_model(tokenizer.vocab_size, context_length=32)
    config = Config(model=model.config)
    return gpt_cli.load(save(tmp_path_factory.mktemp("run"), 1, model.state_dict(), {}, {}, config, tokenizer))


def integer_of(digits: str) -> int:
    """Of any length, where `int` has a limit."""
    return int(Decimal(digits))


def judge(schema: dict[str, Any]) -> Any:
    """A validator that checks formats, too."""
    kind = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def finished_texts(run: Sampler, schema: dict[str, Any]) -> list[str]:
    """Those of the texts of three seeds that were not cut."""
    options: Any = {"json_schema": schema, "temperature": 1.0, "max_new_tokens": 1024}
    texts = [run.generate("\n", seed=seed, **options) for seed in (1, 2, 3)]
    whole = [(text.text(), text.finish_reason) for text in texts]
    assert {reason for _, reason in whole} <= {"match", "length"}
    return [text for text, reason in whole if reason == "match"]


def test_what_a_random_model_finishes_under_any_of_200_schemas_is_valid(run: Sampler) -> None:
    assert len(SCHEMAS) == 200
    finished = 0
    for name, schema in SCHEMAS.items():
        texts = finished_texts(run, schema)
        finished += bool(texts)
        for text in texts:
            problem = next(judge(schema).iter_errors(json.loads(text, parse_int=integer_of)), None)
            assert problem is None, f"{name}: {text!r}: {problem}"
    assert finished >= 150


def test_the_judge_knows_every_format() -> None:
    assert set(FORMATS) <= Draft202012Validator.FORMAT_CHECKER.checkers.keys()


OBJECT, ARRAY, TEXT = {"type": "object"}, {"type": "array"}, {"type": "string"}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("not", {"not": {"type": "null"}}),
    ("if", {"if": {"type": "integer"}, "then": {"minimum": 3}}),
    ("then", {"then": {"minimum": 3}}),
    ("else", {"else": {"minimum": 3}}),
    ("contains", {**ARRAY, "contains": {"const": 1}}),
    ("minContains", {**ARRAY, "contains": {"const": 1}, "minContains": 2}),
    ("maxContains", {**ARRAY, "contains": {"const": 1}, "maxContains": 2}),
    ("uniqueItems", {**ARRAY, "uniqueItems": True}),
    ("unevaluatedItems", {**ARRAY, "unevaluatedItems": False}),
    ("unevaluatedProperties", {**OBJECT, "unevaluatedProperties": False}),
    ("propertyNames", {**OBJECT, "propertyNames": {"pattern": "^a"}}),
    ("dependencies", {**OBJECT, "dependencies": {"a": ["b"]}}),
    ("dependentRequired", {**OBJECT, "dependentRequired": {"a": ["b"]}}),
    ("dependentSchemas", {**OBJECT, "dependentSchemas": {"a": {"minProperties": 2}}}),
    ("$dynamicRef", {"$dynamicRef": "#node"}),
    ("$recursiveRef", {"$recursiveRef": "#"}),
    ("oneOf", {"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 5}]}),
    ("oneOf", {"oneOf": [{**OBJECT, "required": ["a"]}, {**OBJECT, "required": ["b"]}]}),
    ("look-around", {**TEXT, "pattern": "(?=a)b"}),
    ("backreferences", {**TEXT, "pattern": r"(a)\1"}),
    ("unclosed group", {**TEXT, "pattern": "("}),
    ("not disjoint", {**OBJECT, "patternProperties": {"^a": {}, "b$": {}}}),
    ("min/maxProperties", {**OBJECT, "properties": {"a": {}, "b": {}}, "minProperties": 2}),
    ("additionalItems", {**ARRAY, "prefixItems": [{}], "additionalItems": False}),
    ("const has an integer beyond 2^53", {"const": 2**53 + 1}),
    ("enum has an integer beyond 2^53", {"enum": [0, [{"a": -(2**60)}]]}),
    ("minimum has an integer beyond 2^53", {"type": "integer", "minimum": 10**18}),
    ("$defs/none", {"$ref": "#/$defs/none"}),
    ("https://example.org/schema.json", {"$ref": "https://example.org/schema.json"}),
    ("other.json", {"$ref": "other.json"}),
    *(
        (name, {**TEXT, "format": name})
        for name in ("regex", "iri", "json-pointer", "uri-reference", "idn-email", "idn-hostname", "uri-template")
    ),
]
"""(what the error names, a schema that llguidance cannot follow)."""


@pytest.mark.parametrize(("named", "schema"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_a_schema_asks_for_and_nothing_can_enforce_is_refused_by_name(named: str, schema: dict[str, Any]) -> None:
    for whole in schema, record(a=schema):
        with pytest.raises(RequestError, match=rf"json_schema: .*{re.escape(named)}"):
            compile_constraint(CHAR, SamplingParams().replace({"json_schema": whole}))


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ("date", ["2024-02-29", "2000-02-29", "2023-02-28", "2023-12-31"], ["2023-02-29", "1900-02-29", "2023-02-30"]),
        ("time", ["15:17:59Z", "23:59:00.60-02:00"], ["15:17:60Z"]),
        ("date-time", ["2024-02-29T15:17:59Z"], ["2023-02-29T15:17:59Z", "2024-02-29T15:17:60Z"]),
    ],
)
def test_dates_and_times_are_those_that_jsonschema_accepts(form: str, right: list[str], wrong: list[str]) -> None:
    schema = {"properties": {"a": {"type": "string", "format": form}}, "required": ["a"], "additionalProperties": False}
    schema |= OBJECT
    constraint = compile_constraint(ByteTokenizer(), SamplingParams().replace({"json_schema": schema}))
    assert constraint is not None
    for text in right + wrong:
        value = {"a": text}
        assert judge(schema).is_valid(value) == (text in right)
        matcher = constraint.matcher()
        for byte in json.dumps(value).encode():
            matcher.accept(byte)
        assert (matcher.matches and not matcher.rejected_last) == (text in right), text
