"""Structured output and tool calls over HTTP, by OpenAI's Python and JavaScript clients, from models of random weights:
what finishes is valid whatever the model prefers."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest

from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import EngineOptions
from gpt_cli.tokenizer import ForeignTokenizer
from tests.support.foreign_gguf import FLAGS, foreign_tokenizer
from tests.support.foreign_templates import HERMES
from tests.support.live_server import LETTERS, SHAPE, Client, make_run, serving
from tests.support.openai_js import run_js

pytestmark = pytest.mark.system

openai = pytest.importorskip("openai")
MODEL, OTHER, MARKED = "bytes", "letters", "marked"
USER = {"role": "user", "content": "plan a trip"}
PARAMS: dict[str, Any] = {"model": MODEL, "messages": [USER], "seed": 5, "max_tokens": 2000}
MARK = 297  # the first id that the tokenizer leaves free
BRACE = str(ord("{"))  # the id of the byte with which a call begins
Word = Annotated[str, pydantic.Field(max_length=6)]


class Stop(pydantic.BaseModel):
    city: Word
    kind: Literal["museum", "park"]
    hours: Annotated[int, pydantic.Field(ge=1, le=12)]


class Trip(pydantic.BaseModel):
    """A trip."""

    first: Stop
    others: Annotated[list[Stop], pydantic.Field(max_length=2)]
    note: Word | None
    booked: bool


class Add(pydantic.BaseModel):
    """Add two numbers."""

    a: Annotated[int, pydantic.Field(ge=-99, le=99)]
    b: Annotated[int, pydantic.Field(ge=-99, le=99)]


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "sizes": {"type": "array", "items": {"enum": [1, 20]}}},
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
GRAMMAR = 'start: "(" start ")" | /[a-z]{1,3}/'
FIND = {
    "type": "function",
    "function": {
        "name": "find.a-stop",
        "description": "Find a stop.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 5}, "near": {"$ref": "#/$defs/near"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"near": {"enum": [True, None, "é"]}},
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [FIND, NOW]


def with_mark(tokenizer: ForeignTokenizer) -> ForeignTokenizer:
    """With <tool_call> as a token, as published models have it."""
    file = json.loads(tokenizer.file)
    file["added_tokens"].append(FLAGS | {"id": MARK, "content": "<tool_call>", "special": False})
    return replace(tokenizer, file=json.dumps(file))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, long = tmp_path_factory.mktemp("runs"), SHAPE.model_copy(update={"context_length": 1000})
    marked = make_run(folder / MARKED, with_mark(foreign_tokenizer("bpe", chat_template=HERMES)), shape=long)
    return [make_run(folder / MODEL), make_run(folder / OTHER, LETTERS), marked]


@pytest.fixture(scope="module")
def server(runs: list[Path]) -> Iterator[Client]:
    with serving(*runs) as client:
        yield client


@pytest.fixture
def client(server: Client) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def check_thing(text: str) -> None:
    thing = json.loads(text)
    assert thing.keys() == {"name", "sizes"}
    assert len(thing["name"]) <= 5
    assert set(thing["sizes"]) <= {1, 20}


def check_call(call: Any, *names: str) -> None:
    assert call.function.name in names
    arguments = json.loads(call.function.arguments)
    if call.function.name == "now":
        assert arguments == {}
    else:
        assert {"city"} <= arguments.keys() <= {"city", "near"}
        assert arguments.get("near", True) in (True, None, "é")
    assert call.type == "function"
    assert call.id


def test_a_pydantic_model_is_parsed(client: Any) -> None:
    parsed = []
    for seed in range(5):
        completion = client.chat.completions.parse(**PARAMS | {"seed": seed}, response_format=Trip)
        assert completion.choices[0].finish_reason == "stop"
        parsed.append(completion.choices[0].message.parsed)
        assert isinstance(parsed[-1], Trip)
    assert len({trip.model_dump_json() for trip in parsed}) == 5


def test_a_json_object_is_written(client: Any) -> None:
    bias = {str(ord(character)): 100 for character in '"}'}  # ends strings and objects
    completion = client.chat.completions.create(**PARAMS, response_format={"type": "json_object"}, logit_bias=bias)
    assert isinstance(json.loads(completion.choices[0].message.content), dict)
    assert completion.choices[0].finish_reason == "stop"


def test_the_chunks_of_json_make_the_whole(client: Any) -> None:
    params = {**PARAMS, "response_format": JSON_FORMAT}
    whole = client.chat.completions.create(**params).choices[0]
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**params, stream=True)]
    text = "".join(chunk.delta.content or "" for chunk in chunks)
    check_thing(text)
    assert (text, chunks[-1].finish_reason) == (whole.message.content, whole.finish_reason)


def test_each_of_several_answers_is_valid_and_a_cut_one_is_reported(client: Any) -> None:
    choices = client.chat.completions.create(**PARAMS, response_format=JSON_FORMAT, n=4).choices
    assert {choice.finish_reason for choice in choices} == {"stop"}
    for choice in choices:
        check_thing(choice.message.content)
    (cut,) = client.chat.completions.create(**PARAMS | {"max_tokens": 9}, response_format=JSON_FORMAT).choices
    assert cut.finish_reason == "length"
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**PARAMS | {"max_tokens": 9}, response_format=Trip)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find.a-stop"}}], ids=str)
@pytest.mark.parametrize("parallel", [None, False])
def test_a_required_or_named_tool_is_called(client: Any, choice: Any, parallel: bool | None) -> None:
    params = {**PARAMS, "tools": TOOLS, "tool_choice": choice, "n": 4, "parallel_tool_calls": parallel}
    choices = client.chat.completions.create(**params).choices
    for one in choices:
        (call,) = one.message.tool_calls
        check_call(call, "find.a-stop", *(["now"] if choice == "required" else []))
        assert (one.message.content, one.finish_reason) == (None, "tool_calls")
    assert len({one.message.tool_calls[0].id for one in choices}) == 4


def test_where_the_model_decides_it_writes_text_or_a_call(client: Any) -> None:
    params = {**PARAMS, "tools": TOOLS, "tool_choice": "auto", "max_tokens": 100}
    letter = {str(ord("a")): 100}
    (text,) = client.chat.completions.create(**params, logit_bias=letter).choices
    assert (text.message.tool_calls, text.message.content, text.finish_reason) == (None, "a" * 100, "length")
    (stopped,) = client.chat.completions.create(**params, logit_bias=letter, stop="aaa").choices
    assert (stopped.message.tool_calls, stopped.message.content, stopped.finish_reason) == (None, "", "stop")
    (called,) = client.chat.completions.create(**params, logit_bias={BRACE: 100}).choices
    check_call(called.message.tool_calls[0], "find.a-stop", "now")
    assert called.finish_reason == "tool_calls"


def test_tool_choice_none_is_an_answer_without_tools(client: Any) -> None:
    params = {**PARAMS, "max_tokens": 20}
    free = client.chat.completions.create(**params).choices[0]
    none = client.chat.completions.create(**params, tools=TOOLS, tool_choice="none").choices[0]
    assert (none.message.content, none.finish_reason) == (free.message.content, free.finish_reason)


@pytest.mark.parametrize("tokens", [25, 50])
def test_a_call_that_is_cut_is_no_finished_call(client: Any, tokens: int) -> None:
    (cut,) = client.chat.completions.create(
        **PARAMS | {"max_tokens": tokens}, tools=[FIND], tool_choice="required"
    ).choices
    assert cut.finish_reason == "length"
    for call in cut.message.tool_calls or ():
        with pytest.raises(ValueError, match=r".*"):
            json.loads(call.function.arguments)


@pytest.mark.parametrize("bias", [-100, 100])
def test_the_deltas_of_a_stream_accumulate_to_the_whole_answer(client: Any, bias: int) -> None:
    tools = [openai.pydantic_function_tool(Add), openai.pydantic_function_tool(Stop)]
    for seed in range(4):
        params = {**PARAMS, "seed": seed, "tools": tools, "logit_bias": {BRACE: bias}, "stop": ["e", "\n"]}
        whole = client.chat.completions.create(**params).choices[0]
        with client.chat.completions.stream(**params) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion().choices[0]
        assert (final.message.content or "", final.finish_reason) == (whole.message.content or "", whole.finish_reason)
        calls, whole_calls = final.message.tool_calls or [], whole.message.tool_calls or []
        assert [(call.function.name, call.function.arguments) for call in calls] == [
            (call.function.name, call.function.arguments) for call in whole_calls
        ]
        assert bool(calls) == (bias > 0) == ("tool_calls.function.arguments.delta" in kinds)
        for call in calls:
            assert isinstance(call.function.parsed_arguments, Add | Stop)


def test_calls_of_a_model_that_marks_them_are_several_after_text_unless_refused(client: Any) -> None:
    tokenizer = foreign_tokenizer("bpe")
    bias = {int(tokenizer.encode("\n")[0]): 10, MARK: 8}
    tools = [openai.pydantic_function_tool(Add), openai.pydantic_function_tool(Stop)]
    counts, with_text = (set[int](), set[int]()), 0
    for seed in range(12):
        params = {**PARAMS, "model": MARKED, "seed": seed, "tools": tools, "max_tokens": 1000}
        params |= {"logit_bias": bias, "parallel_tool_calls": seed % 2 == 0}
        whole = client.chat.completions.create(**params).choices[0]
        assert whole.finish_reason in ("stop", "tool_calls")
        with client.chat.completions.stream(**params) as stream:
            final = stream.until_done().get_final_completion().choices[0]
        calls = whole.message.tool_calls or []
        assert "<tool_call>" not in (whole.message.content or "")
        assert (final.message.content or "", final.finish_reason) == (whole.message.content or "", whole.finish_reason)
        assert [(call.function.name, call.function.arguments) for call in final.message.tool_calls or []] == [
            (call.function.name, call.function.arguments) for call in calls
        ]
        for call in calls:
            {"Add": Add, "Stop": Stop}[call.function.name].model_validate_json(call.function.arguments)
        counts[seed % 2].add(len(calls))
        with_text += bool(calls and whole.message.content)
    assert max(counts[0]) > 1
    assert max(counts[1]) == 1
    assert with_text


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's, of what it parsed itself
def test_calls_and_what_the_tools_returned_are_sent_back_as_the_client_has_them(client: Any) -> None:
    params = {**PARAMS, "tools": TOOLS, "tool_choice": "required"}
    message = client.chat.completions.create(**params).choices[0].message
    with client.chat.completions.stream(
        **PARAMS, tools=[openai.pydantic_function_tool(Add)], tool_choice="required"
    ) as stream:
        streamed = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    returned = {"role": "tool", "tool_call_id": call.id, "content": "5"}
    spelled = f'{{"name": "{call.function.name}", "arguments": {call.function.arguments}}}'
    histories = [
        [USER, message, returned],
        [USER, message.model_dump(), returned],
        [USER, message.model_dump(exclude_none=True), {**returned, "content": [{"type": "text", "text": "5"}]}],
        [USER, {"role": "assistant", "content": spelled}, {"role": "user", "content": "5"}],
    ]
    free = {"model": MODEL, "seed": 1, "max_tokens": 20}
    answers = [client.chat.completions.create(messages=history, **free) for history in histories]
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    assert len({answer.usage.prompt_tokens for answer in answers}) == 1
    for again in (streamed, streamed.model_dump(exclude_none=True)):
        client.chat.completions.create(messages=[USER, again, returned], **free)
    trip = client.chat.completions.parse(**PARAMS, response_format=Trip).choices[0].message
    for again in (trip, trip.model_dump(warnings=False)):
        client.chat.completions.create(messages=[USER, again, USER], **free)


CONSTRAINTS: list[tuple[dict[str, Any], Any]] = [
    ({"guided_json": SCHEMA}, check_thing),
    ({"guided_json": json.dumps(SCHEMA)}, check_thing),
    ({"guided_regex": "[a-c]{3}x"}, "[a-c]{3}x"),
    ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ({"guided_grammar": GRAMMAR}, r"(\()*[a-z]{1,3}(\))*"),
    ({"structured_outputs": {"json": SCHEMA}}, check_thing),
    ({"structured_outputs": {"regex": r"\d{4}-\d\d"}}, r"\d{4}-\d\d"),
    ({"structured_outputs": {"choice": ["a b", "a"]}}, "a b|a"),
    ({"structured_outputs": {"grammar": GRAMMAR, "json": None}}, r"(\()*[a-z]{1,3}(\))*"),
]


@pytest.mark.parametrize(
    ("fields", "expected"), CONSTRAINTS, ids=[json.dumps(fields)[:60] for fields, _ in CONSTRAINTS]
)
def test_vllms_fields_constrain_completions_chats_and_responses(
    client: Any, fields: dict[str, Any], expected: Any
) -> None:
    completion = client.completions.create(model=MODEL, prompt="a", max_tokens=2000, seed=2, extra_body=fields)
    chat = client.chat.completions.create(**PARAMS, extra_body=fields)
    response = client.responses.create(model=MODEL, input="a", max_output_tokens=2000, extra_body={"seed": 2, **fields})
    assert {completion.choices[0].finish_reason, chat.choices[0].finish_reason} == {"stop"}
    assert response.status == "completed"
    for text in (completion.choices[0].text, chat.choices[0].message.content, response.output_text):
        if isinstance(expected, str):
            assert re.fullmatch(expected, text)
        else:
            expected(text)


def test_responses_have_formats_and_parse(client: Any) -> None:
    params = {"model": MODEL, "input": "a", "max_output_tokens": 2000, "extra_body": {"seed": 3}}
    text = {"format": {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}}
    response = client.responses.create(**params, text=text)
    check_thing(response.output_text)
    assert response.text.format.model_dump(by_alias=True, exclude_none=True) == text["format"]
    with client.responses.stream(**params, text=text) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == response.output_text
    parsed = client.responses.parse(**params, text_format=Trip)
    assert isinstance(parsed.output_parsed, Trip)
    for said in (parsed.output, [item.model_dump(warnings=False) for item in parsed.output]):
        client.responses.create(**{**params, "input": [USER, *said, USER]})
    cut = client.responses.create(**params | {"max_output_tokens": 9}, text=text)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_probabilities_after_the_filters_are_unknown_where_a_constraint_excludes_tokens(server: Client) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 3, "logprobs": 2}
    for fields, known in ({}, True), ({"choices": ["yes", "no"]}, False), ({"guided_json": SCHEMA}, False):
        (choice,) = server.ask("/v1/completions", **body, **fields)[1]["choices"]
        after = [one["after"] for token in choice["logprobs"]["likeliest"] for one in token]
        assert len(after) >= 4
        assert all((value is not None) == known for value in after)


def test_a_text_that_the_vocabulary_cannot_continue_is_reported_as_cut(client: Any) -> None:
    (choice,) = client.completions.create(
        model=OTHER, prompt="a", max_tokens=20, extra_body={"guided_grammar": 'start: "ab" "X"'}
    ).choices
    assert (choice.text, choice.finish_reason) == ("ab", "length")


def test_the_javascript_client_parses_json(server: Client) -> None:
    source = """
    const { zodResponseFormat, zodTextFormat } = await import('openai/helpers/zod');
    const { z } = await import('zod');
    const Thing = z.object({ kind: z.enum(['park', 'museum']), hours: z.int().min(1).max(12), note: z.null() });
    const params = { model: args.model, messages: args.messages, seed: 5, max_tokens: 500 };
    const form = zodResponseFormat(Thing, 'thing');
    const whole = await client.chat.completions.parse({ ...params, response_format: form });
    const stream = await client.chat.completions.stream({ ...params, response_format: form });
    const streamed = await stream.finalChatCompletion();
    const schema = await client.chat.completions.parse({ ...params, response_format: args.form });
    const response = await client.responses.parse({
      model: args.model, input: 'a', max_output_tokens: 500, text: { format: zodTextFormat(Thing, 'thing') } });
    const message = (completion) => completion.choices[0].message;
    return { whole: message(whole), streamed: message(streamed), schema: message(schema),
      response: response.output_parsed, reason: whole.choices[0].finish_reason };
    """
    answers = run_js(server.url, source, model=MODEL, messages=[USER], form=JSON_FORMAT)
    for thing in (answers["whole"]["parsed"], answers["response"]):
        assert thing["kind"] in ("park", "museum")
        assert 1 <= thing["hours"] <= 12
        assert thing["note"] is None
    assert answers["streamed"]["content"] == answers["whole"]["content"]
    check_thing(answers["schema"]["content"])
    assert answers["reason"] == "stop"


def test_the_javascript_client_reads_tool_calls_and_sends_them_back(client: Any, server: Client) -> None:
    source = """
    const params = { model: args.model, messages: args.messages, seed: 5, max_tokens: 500, tools: args.tools };
    const create = (more) => client.chat.completions.create({ ...params, ...more });
    const required = await create({ tool_choice: 'required' });
    const named = await create({ tool_choice: { type: 'function', function: { name: 'now' } } });
    const auto = await create({ logit_bias: { [args.brace]: 100 } });
    const text = await create({ logit_bias: { [args.brace]: -100 }, max_tokens: 9 });
    const streaming = client.chat.completions.stream({ ...params, tool_choice: 'required' });
    const streamed = await streaming.finalChatCompletion();
    const chunks = await all(await create({ tool_choice: 'required', stream: true }));
    const call = required.choices[0].message.tool_calls[0];
    const messages = [...args.messages, required.choices[0].message,
      { role: 'tool', tool_call_id: call.id, content: '5' }];
    const next = await create({ messages, tools: undefined, max_tokens: 9 });
    const refused = await create({ tool_choice: { type: 'function', function: { name: 'x' } } }).catch((e) => e);
    return { choices: [required, named, auto, text, streamed].map((one) => one.choices[0]), next, chunks,
      refused: { status: refused.status, param: refused.param } };
    """
    answers = run_js(server.url, source, model=MODEL, messages=[USER], tools=TOOLS, brace=BRACE)
    required, named, auto, text, streamed = answers["choices"]
    params = {**PARAMS, "max_tokens": 500, "tools": TOOLS, "tool_choice": "required"}
    ((ours,),) = [choice.message.tool_calls for choice in client.chat.completions.create(**params).choices]
    expected = {"name": ours.function.name, "arguments": ours.function.arguments}
    assert [one["message"]["tool_calls"][0]["function"] for one in (required, streamed)] == [expected] * 2
    assert json.loads(named["message"]["tool_calls"][0]["function"]["arguments"]) == {}
    assert {one["finish_reason"] for one in (required, named, auto, streamed)} == {"tool_calls"}
    assert auto["message"]["tool_calls"]
    assert (text["finish_reason"], "tool_calls" in text["message"]) == ("length", False)
    deltas = [chunk["choices"][0]["delta"] for chunk in answers["chunks"]]
    parts = [call["function"].get("arguments", "") for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(parts) == expected["arguments"]
    assert answers["next"]["choices"][0]["message"]["content"]
    assert answers["refused"] == {"status": 400, "param": "tool_choice"}


def test_the_ai_sdk_reads_objects_and_tool_calls(server: Client) -> None:
    source = """
    const { generateObject, tool, stepCountIs } = await import('ai');
    const { z } = await import('zod');
    const params = { maxOutputTokens: 500, temperature: 1, prompt: 'a', maxRetries: 0 };
    const schema = z.object({ kind: z.enum(['park', 'museum']), hours: z.int().min(1).max(12) });
    const models = [sdk(args.model), sdk.chat(args.model)];
    const objects = await Promise.all(models.map((model) => generateObject({ ...params, model, schema })));
    const add = tool({ inputSchema: schema, execute: async ({ hours }) => hours + 1 });
    const called = await generateText({ ...params, model: models[1], tools: { add }, toolChoice: 'required',
      stopWhen: stepCountIs(2) });
    const stream = streamText({ ...params, model: models[1], tools: { add }, toolChoice: 'required' });
    const parts = await all(stream.fullStream);
    return { objects: objects.map((one) => one.object), parts: parts.filter((part) => part.type === 'tool-call'),
      steps: called.steps.map((step) => ({ reason: step.finishReason, calls: step.toolCalls })) };
    """
    answers = run_js(server.url, source, model=MODEL)
    calls = [call for step in answers["steps"] for call in step["calls"]]
    assert [step["reason"] for step in answers["steps"]] == ["tool-calls"] * 2
    assert {call["toolName"] for call in calls + answers["parts"]} == {"add"}
    for thing in [*answers["objects"], *(call["input"] for call in calls + answers["parts"])]:
        assert thing["kind"] in ("park", "museum")
        assert 1 <= thing["hours"] <= 12


MIXED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/completions", {"prompt": "a", "regex": "[a-z ]{3,20}!"}),
    ("/v1/completions", {"prompt": "a", "guided_json": SCHEMA, "logprobs": 2}),
    ("/v1/completions", {"prompt": "a", "guided_grammar": GRAMMAR, "top_k": 40}),
    ("/v1/completions", {"prompt": "a", "logprobs": 1}),
    ("/v1/completions", {"prompt": "a", "choices": ["abc", "abd", "x"], "temperature": 0}),
    ("/v1/chat/completions", {"messages": [USER], "response_format": JSON_FORMAT, "presence_penalty": 0.5}),
    ("/v1/chat/completions", {"messages": [USER], "tools": TOOLS, "tool_choice": "required"}),
    ("/v1/chat/completions", {"messages": [USER], "tools": TOOLS, "n": 2}),
    ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_object"}}}),
    ("/v1/responses", {"input": "a"}),
]


def without_ids(answer: Any) -> Any:
    """`answer` without what differs from one to the next."""
    if isinstance(answer, dict):
        dropped = ("id", "created", "created_at", "completed_at")
        return {name: without_ids(value) for name, value in answer.items() if name not in dropped}
    return [without_ids(value) for value in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_constrained_and_free_texts_are_what_they_are_alone(runs: list[Path], engine: Any) -> None:
    requests = [(path, {**content, "seed": seed, "model": MODEL}) for seed in range(3) for path, content in MIXED]
    with serving(*runs, options=EngineOptions(engine=engine)) as server, ThreadPoolExecutor(len(requests)) as pool:
        alone = [server.ask(path, **content) for path, content in requests]
        with server.held():
            asked = [pool.submit(server.ask, path, **content) for path, content in requests]
        together = [one.result() for one in asked]
    assert {status for status, _ in alone + together} == {200}
    assert without_ids([answer for _, answer in together]) == without_ids([answer for _, answer in alone])


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def json_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


ERRORS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": json_format({"not": {}})}, "response_format", 'Unimplemented keys: ["not"]'),
    ({"response_format": json_format({"pattern": "("})}, "response_format", "unclosed group"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema has no schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": {"type": "json_object"}, "stop": "a"}, "stop", "stop does not go with json_schema"),
    ({"response_format": {"type": "json_object"}, "min_new_tokens": 3}, "min_new_tokens", "does not go with"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "not both"),
    ({"guided_regex": "a", "regex": "a"}, "regex", "give regex or guided_regex, not both"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.regex", "not both"),
    ({"structured_outputs": {"regex": "a("}}, "structured_outputs.regex", "unclosed group"),
    ({"structured_outputs": {"yaml": "a"}}, "structured_outputs.yaml", "there is no parameter"),
    ({"guided_regex": r"(a)\1"}, "guided_regex", "backreferences"),
    ({"guided_json": "{"}, "guided_json", "not JSON"),
    ({"guided_json": {"type": "text"}}, "guided_json", "Invalid type: text"),
    ({"guided_grammar": "start: x"}, "guided_grammar", "unknown name"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"guided_json": 5}, "guided_json", "dictionary"),
    ({"tools": [tool(strict="yes")]}, "tools.0.function.strict", "boolean"),
    ({"guided_json": {"type": "object"}, "model": OTHER}, "guided_json", "the vocabulary cannot write any text"),
    ({"guided_regex": "[0-9]+", "model": OTHER}, "guided_regex", "the vocabulary cannot write any text"),
    ({"guided_choice": ["a", "é"], "model": OTHER}, "guided_choice", "the vocabulary lacks: é"),
    ({"tools": TOOLS, "model": OTHER}, "tools", "the vocabulary cannot write any text"),
    ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "tools", "tool_choice none leaves them out"),
    ({"tools": TOOLS, "regex": "a"}, "tools", "tool_choice none leaves them out"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "no tool x"),
    ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice", "required"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function", "missing"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "no tool x"),
    ({"tools": [tool(), tool()]}, "tools", "two have one name"),
    ({"tools": [tool(name="a b")]}, "tools.0.function.name", "pattern"),
    ({"tools": [tool(parameters={"type": "string"})]}, "tools.0.function.parameters", "must have the type object"),
    ({"tools": [NOW, tool(parameters={"not": {}})]}, "tools", 'the parameters of f: Unimplemented keys: ["not"]'),
    ({"tools": [tool(name=f"f{i}") for i in range(129)]}, "tools", "at most 128"),
    ({"tools": [tool(description="a"), {"type": "web_search"}]}, "tools.1.type", "'function'"),
    ({"messages": [{"role": "tool"}]}, "messages.0.content", "missing"),
    (
        {"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]},
        "messages.0.tool_calls.0.function",
        "missing",
    ),
]


@pytest.mark.parametrize(
    ("fields", "param", "message"), ERRORS, ids=[f"{param}: {message}" for _, param, message in ERRORS]
)
def test_what_cannot_be_followed_is_refused_by_name(
    server: Client, fields: dict[str, Any], param: str, message: str
) -> None:
    status, answer = server.ask("/v1/chat/completions", **{"model": MODEL, "messages": [USER], **fields})
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert message in answer["error"]["message"]
    assert len(answer["error"]["message"]) < 300


@pytest.mark.parametrize("form", [{"type": "json_schema", "name": "a"}, {"type": "json_schema", "schema": {"not": {}}}])
def test_a_format_of_a_response_is_refused_by_its_name(server: Client, form: dict[str, Any]) -> None:
    status, answer = server.ask("/v1/responses", model=MODEL, input="a", text={"format": form})
    assert (status, answer["error"]["param"]) == (400, "text.format")


def nested_items(depth: int, definitions: int) -> dict[str, Any]:
    """As JSON text: a body may not nest as deeply."""
    items = '{"type": "array", "items": ' * depth + '{"$ref": "#/$defs/d%d"}' + "}" * depth
    parts = ", ".join(f'"d{i}": {items % (i + 1)}' for i in range(definitions))
    return {"guided_json": f'{{"$ref": "#/$defs/d0", "$defs": {{{parts}, "d{definitions}": {{"type": "null"}}}}}}'}


HOSTILE: dict[str, dict[str, Any]] = {
    "a chain of references": nested_items(10, 200),
    "nesting": {"guided_json": '{"items": ' * 1_000 + "{}" + "}" * 1_000},
    "properties": {"guided_json": {"properties": {f"p{i}": {"type": "string"} for i in range(1_000)}}},
    "more properties": {"guided_json": {"properties": {f"p{i}": {} for i in range(10_000)}}},
    "counted properties": {"guided_json": {"properties": {f"p{i}": {} for i in range(300)}, "minProperties": 2}},
    "an enum of objects": {"guided_json": {"enum": [{"a": i} for i in range(10_000)]}},
    "an enum of texts": {"guided_json": {"enum": [f"{i}" * 100 for i in range(100)]}},
    "lengths": {"guided_json": {"type": "string", "minLength": 10**9, "maxLength": 10**10}},
    "counts": {"guided_json": {"type": "array", "minItems": 10**8}},
    "patterns": {"guided_json": {"allOf": [{"type": "string", "pattern": f"a.*{i}.*b"} for i in range(30)]}},
    "patterned properties": {"guided_json": {"patternProperties": {f"^{i}.*x": {} for i in range(300)}}},
    "multiples": {"guided_json": {"type": "integer", "multipleOf": 1_000_003}},
    "multiples in all": {"guided_json": {"type": "integer", "allOf": [{"multipleOf": 997}, {"multipleOf": 1009}]}},
    "a cycle": {"guided_json": {"$ref": "#"}},
    "an endless object": {"guided_json": {"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}},
    "a remote reference": {"guided_json": {"$ref": "http://127.0.0.1:9/schema.json"}},
    "repeats": {"guided_regex": "(a{1000}){1000}"},
    "backtracking": {"guided_regex": "(x+x+)+y"},
    "a long text": {"guided_regex": ".{0,100000}"},
    "ambiguous rules": {"guided_grammar": 'start: s\ns: s s | "a"'},
    "doubling rules": {
        "guided_grammar": "\n".join(["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(40)), 'r40: "a"'])
    },
    "a chain of rules": {
        "guided_grammar": "\n".join(["start: r0", *(f"r{i}: r{i + 1}" for i in range(1_100)), 'r1100: "a"'])
    },
    "a schema in a grammar": {"guided_grammar": 'start: %json {"a": "%json", "multipleOf": 1000003}'},
    "a schema after a text": {"guided_grammar": 'start: "%json" %json {"multipleOf": 1000003}'},
    "intersections": {"guided_grammar": "start: A\nA: " + " & ".join(f"/.*a.{{{i}}}b.*/" for i in range(30))},
    "tools": {
        "tools": [
            tool(name=f"f{i}", parameters={"properties": {f"p{j}": {"enum": [{"a": j}]} for j in range(40)}})
            for i in range(128)
        ]
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_constraint_is_refused_or_followed_and_others_are_served(server: Client, name: str) -> None:
    body = {"model": MODEL, "messages": [USER], "max_tokens": 60, "seed": 1}
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(server.ask, "/v1/chat/completions", **body)
        status, answer = server.ask("/v1/chat/completions", **body, **HOSTILE[name])
        assert other.result()[0] == 200
    assert status in (200, 400), answer
    if status == 400:
        assert answer["error"]["param"] == next(iter(HOSTILE[name]))


def test_a_stream_of_calls_whose_time_is_up_ends_with_an_error(runs: list[Path]) -> None:
    bias = {str(ord(character)): -100 for character in '"]}'}
    parameters = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    body = {"messages": [USER], "tools": [tool(parameters=parameters)], "tool_choice": "required", "logit_bias": bias}
    limits = Limits(seconds=0.5, max_tokens=10_000_000)
    with serving(runs[0], limits=limits) as server:
        events = server.events("/v1/chat/completions", **body, max_tokens=limits.max_tokens)
    assert events[-1]["error"]["code"] == "timeout"
