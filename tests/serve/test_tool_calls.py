"""Tool calls: a grammar admits what `write` writes and nothing else, and whatever is read of a text stays."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.errors import RequestError
from gpt_cli.sampling.constraint import Constraint, compile_constraint
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.serve.chat_prompt import encode_chat
from gpt_cli.serve.chat_schemas import ChatRequest
from gpt_cli.serve.model_registry import EngineOptions, open_model
from gpt_cli.serve.tools import CallFormat, Tool, ToolCall, ToolChoice, check_tools
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer
from tests.support.foreign_gguf import foreign_tokenizer
from tests.support.foreign_templates import HERMES
from tests.support.live_server import SHAPE, make_run

TAGS = CallFormat.of(foreign_tokenizer("bpe", chat_template=HERMES))
BARE = CallFormat.of(ByteTokenizer())
FORMATS = pytest.mark.parametrize("form", [TAGS, BARE], ids=["tags", "bare"])
BYTE = ByteTokenizer()
CLOSED = {"type": "object", "additionalProperties": False}
ADD = Tool("add", CLOSED | {"properties": {"a": {"type": "integer"}}, "required": ["a"]})
SAY = Tool("say.it-twice", CLOSED | {"properties": {"text": {"type": "string"}}})
NOW = Tool("now", None)


def make_choice(*tools: Tool, required: bool = True, parallel: bool = True) -> ToolChoice:
    return ToolChoice(tools, required, parallel, described=[])


def constraint_of(form: CallFormat, choice: ToolChoice) -> Constraint:
    compiled = compile_constraint(BYTE, SamplingParams(grammar=form.grammar(choice)))
    assert compiled is not None
    return compiled


def admits(constraint: Constraint, text: str) -> bool:
    """True if `text` is a whole answer: each of its bytes may follow, and then it may end."""
    matcher = constraint.matcher()
    for byte in text.encode():
        mask = matcher.mask()
        if matcher.finished or (mask is not None and not mask[byte // 32] >> byte % 32 & 1):
            return False
        matcher.accept(byte)
        if matcher.rejected_last:
            return False
    return matcher.matches


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(['}{"', "</tool_call>", "\\", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.builds(
    json.dumps,
    st.dictionaries(st.text(max_size=4), VALUES, max_size=3),
    ensure_ascii=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
NAMES = st.from_regex(r"[a-zA-Z0-9_.-]{1,64}", fullmatch=True)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3)
PIECES = [
    "<tool_call>",
    "\n",
    "</tool_call>",
    '{"name": "f", "arguments": ',
    '{"a": [{}]}',
    "{",
    "}",
    '"',
    "\\",
    "x é ",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def check_growth(form: CallFormat, text: str) -> tuple[str, list[ToolCall]]:
    """What is read of each beginning of `text` begins what is read of the next; returns the last."""
    content, calls = "", list[ToolCall]()
    for end in range(len(text) + 2):
        next_content, next_calls = form.read(text[:end], ended=end > len(text))
        assert next_content.startswith(content)
        assert len(next_calls) >= len(calls)
        for before, after in zip(calls, next_calls, strict=False):
            assert after.name == before.name
            assert after.arguments == before.arguments if before.complete else True
            assert after.arguments.startswith(before.arguments)
            assert after.complete >= before.complete
        content, calls = next_content, next_calls
    return content, calls


@FORMATS
@given(text=TEXTS)
def test_what_is_read_of_any_text_only_grows(form: CallFormat, text: str) -> None:
    check_growth(form, text)


@FORMATS
@given(content=st.text(max_size=12), calls=CALLS)
def test_an_answer_is_read_as_it_was_written(form: CallFormat, content: str, calls: list[tuple[str, str]]) -> None:
    if form is BARE:  # has one call, or text that does not begin like one
        calls = [] if content else calls[:1]
        content = content.lstrip("{")
    text = content.replace("<tool_call>", "") + "\n".join(form.write(name, arguments) for name, arguments in calls)
    expected = [ToolCall(name, arguments, complete=True) for name, arguments in calls]
    assert check_growth(form, text) == (content.replace("<tool_call>", ""), expected)


@FORMATS
def test_arguments_are_read_however_deep_and_however_large_their_numbers_are(form: CallFormat) -> None:
    for value in ("[" * 50_000 + "]" * 50_000, "9" * 5_000, "1e999", '"' + "[{" * 999 + '"'):
        arguments = f'{{"a": {value}}}'
        assert form.read(form.write("f", arguments), ended=True)[1] == [ToolCall("f", arguments, complete=True)]
        (cut,) = form.read(form.write("f", arguments)[: -len(form.closing) - 2], ended=True)[1]
        assert not cut.complete


@FORMATS
@given(
    a=st.integers(-(10**30), 10**30), text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"))
)
def test_the_grammar_admits_the_calls_that_write_writes(form: CallFormat, a: int, text: str) -> None:
    constraint = GRAMMARS[form, True]
    assert admits(constraint, form.write("add", json.dumps({"a": a})))
    assert admits(constraint, form.write("say.it-twice", json.dumps({"text": text}, ensure_ascii=False)))
    assert admits(constraint, form.write("now", "{}"))


GRAMMARS = {
    (form, parallel): constraint_of(form, make_choice(ADD, SAY, NOW, parallel=parallel))
    for form in (TAGS, BARE)
    for parallel in (True, False)
}


@FORMATS
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sub", '{"a": 1}'),
        ("ad", '{"a": 1}'),
        ("add", '{"a": "1"}'),
        ("add", '{"a": 1.5}'),
        ("add", '{"b": 1}'),
        ("add", '{"a": 1, "b": 1}'),
        ("add", "{}"),
        ("add", "[1]"),
        ("say.it-twice", '{"text": null}'),
        ("sayxit-twice", "{}"),
        ("now", '{"a": 1}'),
    ],
)
def test_the_grammar_refuses_unknown_tools_and_arguments_that_a_schema_forbids(
    form: CallFormat, name: str, arguments: str
) -> None:
    assert not admits(GRAMMARS[form, True], form.write(name, arguments))


@FORMATS
@pytest.mark.parametrize("required", [True, False])
def test_a_second_call_needs_a_format_with_marks_and_parallel(form: CallFormat, required: bool) -> None:
    one, other = form.write("add", '{"a": 1}'), form.write("now", "{}")
    for parallel in (True, False):
        constraint = constraint_of(form, make_choice(ADD, NOW, required=required, parallel=parallel))
        assert admits(constraint, one)
        assert admits(constraint, f"{one}\n{other}") == (parallel and form is TAGS)
        assert not admits(constraint, one + other)


@FORMATS
def test_where_no_call_is_required_any_text_may_stand_and_a_call_that_begins_is_one(form: CallFormat) -> None:
    call = form.write("add", '{"a": 1}')
    auto, required = (constraint_of(form, make_choice(ADD, required=required)) for required in (False, True))
    for text in ("", "a {b}\nc", "é <tool_cal", '<tools>{"name": "f"}', " {"):
        assert admits(auto, text)
        assert not admits(required, text)
    assert admits(auto, call)
    assert admits(auto, f"So:\n{call}")
    assert not admits(auto, form.write("sub", "{}"))
    assert not admits(required, f"So:\n{call}")
    if form is TAGS:
        assert not admits(auto, "So: <tool_call>")
        assert not admits(auto, f"{call} and")


@FORMATS
def test_parameters_may_refer_to_definitions_of_their_own(form: CallFormat) -> None:
    def tree(leaf: str) -> dict[str, Any]:
        node = CLOSED | {"properties": {"leaf": {"type": leaf}, "next": {"$ref": "#/$defs/node"}}}
        return {"$ref": "#/$defs/node", "$defs": {"node": node}}

    constraint = constraint_of(form, make_choice(Tool("text", tree("string")), Tool("number", tree("number"))))
    assert admits(constraint, form.write("text", '{"leaf": "a", "next": {"leaf": "b"}}'))
    assert admits(constraint, form.write("number", '{"next": {"next": {"leaf": 1.5}}}'))
    assert not admits(constraint, form.write("number", '{"next": {"leaf": "b"}}'))


@FORMATS
@pytest.mark.parametrize("required", [True, False])
def test_as_many_tools_as_a_request_may_have_are_compiled(form: CallFormat, required: bool) -> None:
    properties = {
        "city": {"type": "string", "description": "A city & its country: {name, country}"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F"]},
    }
    tools = [Tool(f"{i:03}".ljust(64, "_"), CLOSED | {"properties": properties}) for i in range(128)]
    choice = make_choice(*tools, required=required)
    check_tools(choice, BYTE)
    for tool in (tools[0], tools[-1]):
        assert admits(constraint_of(form, choice), form.write(tool.name, '{"city": "Bern", "days": 3}'))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"properties": {"a": {"not": {}}}}, 'tools: the parameters of bad: Unimplemented keys: ["not"]'),
        ({"properties": {"a": {"pattern": "("}}}, "tools: the parameters of bad: "),
        ({"properties": {"a": False}, "required": ["a"]}, "tools: the parameters of bad: Unsatisfiable"),
        ({"properties": {"a": {"multipleOf": 1_000_003}}}, "tools: more than 50,000 states of multipleOf"),
        ({"description": "x" * 70_000}, "tools: more than 65,536 bytes of JSON"),
    ],
)
@pytest.mark.parametrize("required", [True, False])
def test_parameters_that_cannot_be_followed_are_named(parameters: dict[str, Any], message: str, required: bool) -> None:
    with pytest.raises(RequestError) as error:
        check_tools(make_choice(ADD, Tool("bad", parameters), required=required), BYTE)
    assert message in error.value.message


def test_a_vocabulary_that_cannot_write_calls_is_an_error_even_where_none_is_required() -> None:
    with pytest.raises(RequestError, match=r"tools: .*the vocabulary cannot write any text that matches"):
        check_tools(make_choice(NOW, required=False), CharTokenizer("abc"))


USER = {"role": "user", "content": "What is 2 + 3 in Zürich?"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Add é & ü.", "parameters": {"type": "object", "properties": {}}},
    },
    {"type": "function", "function": {"name": "now"}},
]
CALLED = [
    {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":2, "b": [3, "é"]}'}},
    {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
]
RETURNED = [{"role": "tool", "tool_call_id": f"call_{i}", "content": f"5{i}"} for i in (1, 2)]


def as_transformers_has_them(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With content that is never None, and arguments that are objects."""
    spelled = json.loads(json.dumps(messages))
    for message in spelled:
        message["content"] = message["content"] or ""
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return spelled


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "system", "content": "Be brief."}, USER],
        [USER, {"role": "assistant", "content": None, "tool_calls": CALLED}, *RETURNED],
        [USER, {"role": "assistant", "content": "Adding.", "tool_calls": CALLED[:1]}, RETURNED[0], USER],
    ],
    ids=["user", "system", "calls", "text and a call"],
)
@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "no tools"])
def test_a_chat_template_gets_messages_calls_and_tools_as_transformers_gives_them(
    tmp_path: Path, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    ours = foreign_tokenizer("bpe", chat_template=HERMES)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(ours.file), chat_template=HERMES
    )
    run = make_run(tmp_path / "run", ours, shape=SHAPE.model_copy(update={"context_length": 2000}))
    body = ChatRequest.read({"messages": messages, "tools": tools})
    model = open_model("run", run, EngineOptions(), print, None)
    expected = theirs.apply_chat_template(as_transformers_has_them(messages), tools=tools, add_generation_prompt=True)
    assert encode_chat(model, body.messages, body.tool_use()) == (expected["input_ids"], False)
