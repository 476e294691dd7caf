"""`POST /v1/responses`: OpenAI's clients and the AI SDK read what it sends, and its text is that of a chat."""

import json
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

from gpt_cli.serve.limits import Limits
from tests.support.live_server import LETTERS, Client, make_run, serving
from tests.support.openai_js import run_js

pytestmark = pytest.mark.system

openai = pytest.importorskip("openai")
types = pytest.importorskip("openai.types.responses")
MODEL = "letters"
PARAMS: dict[str, Any] = {"model": MODEL, "temperature": 0.9, "top_p": 0.95}
SHAPES: Any = pydantic.TypeAdapter(types.ResponseStreamEvent)
SEED = {"extra_body": {"seed": 5}}
HISTORY = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    run = make_run(tmp_path_factory.mktemp("runs") / MODEL, LETTERS, prefix="q: ", suffix=" a: ")
    with serving(run) as client:
        yield client


@pytest.fixture
def client(server: Client) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat_text(client: Any, messages: list[dict[str, Any]], **params: Any) -> str:
    content: str = (
        client.chat.completions.create(messages=messages, **PARAMS, seed=5, **params).choices[0].message.content
    )
    return content


def sent_events(server: Client, **content: Any) -> list[tuple[str, dict[str, Any]]]:
    status, headers, body = server.send("POST", "/v1/responses", json.dumps({**content, "stream": True}).encode())
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    lines = [event.split("\n") for event in body.decode().split("\n\n") if event]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


@pytest.mark.parametrize("length", [3, None])
def test_the_text_of_a_response_is_that_of_a_chat_with_the_same_seed(client: Any, length: int | None) -> None:
    response = client.responses.create(input="a", instructions="b", max_output_tokens=length, **PARAMS, **SEED)
    messages = [{"role": "system", "content": "b"}, {"role": "user", "content": "a"}]
    assert response.output_text == chat_text(client, messages, max_tokens=length)
    assert type(response).model_validate(response.model_dump(warnings=False), strict=True).output[0].role == "assistant"
    assert (response.model, response.seed, response.instructions) == (MODEL, 5, "b")
    assert (response.temperature, response.top_p, response.error) == (0.9, 0.95, None)
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    if length:
        assert (response.status, response.output[0].status, usage.output_tokens) == ("incomplete", "incomplete", 3)
        assert response.incomplete_details.reason == "max_output_tokens"


def test_a_text_that_ends_by_itself_is_completed(client: Any) -> None:
    response = client.responses.create(input="a", model=MODEL, extra_body={"seed": 1, "choices": ["yes", "no"]})
    assert response.output_text in ("yes", "no")
    assert (response.status, response.output[0].status, response.incomplete_details) == ("completed", "completed", None)


def test_a_response_may_have_no_tokens(client: Any) -> None:
    response = client.responses.create(input="a", model=MODEL, max_output_tokens=0)
    assert (response.output_text, response.status, response.usage.output_tokens) == ("", "incomplete", 0)


@pytest.mark.parametrize("choices", [None, ["yes", "no"]])
def test_the_events_of_a_stream_are_in_openais_order_and_make_the_whole(
    client: Any, server: Client, choices: list[str] | None
) -> None:
    body = {"input": "a", "model": MODEL, "seed": 5, "max_output_tokens": 20, "choices": choices}
    events = sent_events(server, **body)
    for _, content in events:
        SHAPES.validate_python(content)
    names = [name for name, _ in events]
    assert names == [content["type"] for _, content in events]
    assert [content["sequence_number"] for _, content in events] == list(range(len(events)))
    assert names[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(names[4:-4]) == {"response.output_text.delta"}
    assert names[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed" if choices else "response.incomplete",
    ]
    whole, streamed = server.ask("/v1/responses", **body)[1], events[-1][1]["response"]
    text = whole["output"][0]["content"][0]["text"]
    assert "".join(content["delta"] for name, content in events if name.endswith(".delta")) == text
    assert events[-4][1]["text"] == events[-3][1]["part"]["text"] == text
    assert events[-2][1]["item"] == streamed["output"][0]
    for name in whole.keys() - {"id", "created_at", "completed_at", "output"}:
        assert streamed[name] == whole[name]


def test_the_python_client_accumulates_a_stream(client: Any) -> None:
    params = {"input": "a", **PARAMS, "extra_body": {"seed": 5, "regex": "[a-z]{8}"}}
    with client.responses.stream(**params) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == client.responses.create(**params).output_text
    assert len(final.output_text) == 8


def test_earlier_outputs_are_read_as_the_client_dumps_them(client: Any) -> None:
    answer = client.responses.create(input="a", model=MODEL, max_output_tokens=4, **SEED)
    texts = {
        client.responses.create(input=[HISTORY[0], *said, HISTORY[2]], **PARAMS, **SEED).output_text
        for said in (
            answer.output,
            [item.model_dump() for item in answer.output],
            [item.model_dump(exclude_none=True) for item in answer.output],
            [{"role": "assistant", "content": answer.output_text}],
            [{"role": "assistant", "content": [{"type": "output_text", "text": answer.output_text}]}],
        )
    }
    said = {"role": "assistant", "content": answer.output_text}
    assert texts == {chat_text(client, [HISTORY[0], said, HISTORY[2]])}


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "truncation": "disabled", "background": False},
        {
            "reasoning": {"effort": None, "summary": None},
            "include": [],
            "previous_response_id": None,
            "instructions": "",
        },
        {"top_logprobs": 0, "service_tier": "auto", "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
        {
            "stream_options": {"include_obfuscation": False},
            "conversation": None,
            "prompt": None,
            "max_tool_calls": None,
        },
    ],
    ids=str,
)
def test_fields_that_ask_for_nothing_change_no_response(server: Client, fields: dict[str, Any]) -> None:
    body = {"input": "a", "seed": 5, "max_output_tokens": 6}
    status, answer = server.ask("/v1/responses", **body, **fields)
    assert status == 200, answer
    assert answer["output"][0]["content"] == server.ask("/v1/responses", **body)[1]["output"][0]["content"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"max_output_tokens": 2, "min_new_tokens": 3}, "min_new_tokens"),
        ({"n": 2}, "n"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": HISTORY}, "messages"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]},
            "input.0.content.0.type",
        ),
    ],
    ids=str,
)
def test_what_a_response_cannot_do_is_refused_by_name(server: Client, fields: dict[str, Any], param: str) -> None:
    status, answer = server.ask("/v1/responses", **{"input": "a", **fields})
    assert (status, answer["error"]["param"]) == (400, param)


def test_nothing_of_a_response_is_kept_and_other_paths_are_not_there(client: Any, server: Client) -> None:
    answer = client.responses.create(input="a", model=MODEL, max_output_tokens=1)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    status, refused = server.ask("/v1/embeddings", input="a")
    assert (status, refused["error"]["type"]) == (404, "not_found_error")
    assert "/v1/responses" in refused["error"]["message"]


def test_a_stream_whose_time_is_up_ends_as_failed(tmp_path: Any) -> None:
    limits = Limits(seconds=0.2, max_tokens=10_000_000)
    body = {"input": "a", "max_output_tokens": limits.max_tokens}
    with serving(make_run(tmp_path / MODEL, LETTERS), limits=limits) as server:
        assert server.ask("/v1/responses", **body)[0] == 504
        name, last = sent_events(server, **body)[-1]
    assert (name, last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "server_error"


def test_the_javascript_client_reads_whole_and_streamed_responses(client: Any, server: Client) -> None:
    source = """
    const params = { model: args.model, input: 'a', instructions: 'b', max_output_tokens: 6, seed: 5 };
    const whole = await client.responses.create(params);
    const events = await all(await client.responses.create({ ...params, stream: true }));
    const final = await client.responses.stream({ ...params, choices: ['yes', 'no'] }).finalResponse();
    const input = [{ role: 'user', content: 'a' }, ...whole.output];
    const next = await client.responses.create({ ...params, input });
    const reading = client.responses.create({ ...params, previous_response_id: 'resp_1' });
    const { status, param } = await reading.catch((error) => error);
    return { whole, events, final, next, refused: { status, param } };
    """
    answers = run_js(server.url, source, model=MODEL)
    text = client.responses.create(model=MODEL, input="a", instructions="b", max_output_tokens=6, **SEED).output_text
    assert answers["whole"]["output_text"] == text
    deltas = [event["delta"] for event in answers["events"] if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == answers["events"][-1]["response"]["output"][0]["content"][0]["text"] == text
    assert answers["final"]["output_text"] in ("yes", "no")
    assert answers["next"]["status"] == "incomplete"
    assert answers["refused"] == {"status": 400, "param": "previous_response_id"}


def test_the_ai_sdk_reads_whole_and_streamed_responses_and_sends_a_history(client: Any, server: Client) -> None:
    source = """
    const params = { model: sdk(args.model), maxOutputTokens: 6, temperature: 0 };
    const whole = await generateText({ ...params, prompt: 'a' });
    const stream = streamText({ ...params, prompt: 'a' });
    const pieces = await all(stream.textStream);
    const messages = [{ role: 'user', content: 'a' }, ...whole.response.messages, { role: 'user', content: 'b' }];
    const options = { openai: { store: false } };
    const next = await generateText({ ...params, messages, providerOptions: options });
    const summary = (answer) => ({ text: answer.text, reason: answer.finishReason, tokens: answer.usage.outputTokens });
    return { whole: summary(whole), text: pieces.join(''), reason: await stream.finishReason, next: summary(next) };
    """
    answers = run_js(server.url, source, model=MODEL)
    params = {"model": MODEL, "temperature": 0, "max_output_tokens": 6}
    text = client.responses.create(input="a", **params).output_text
    assert answers["whole"] == {"text": text, "reason": "length", "tokens": 6}
    assert (answers["text"], answers["reason"]) == (text, "length")
    history = [HISTORY[0], {"role": "assistant", "content": text}, {"role": "user", "content": "b"}]
    assert answers["next"]["text"] == client.responses.create(input=history, **params).output_text
