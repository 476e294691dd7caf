"""What asks for nothing is accepted on every level of a request, what asks for something is done or refused by name."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live_server import LETTERS, Client, make_run, serving

pytestmark = pytest.mark.system

ASKS_FOR_NOTHING: list[dict[str, Any]] = [
    {"tools": [], "tool_choice": "none", "parallel_tool_calls": True, "functions": [], "function_call": "none"},
    {"tool_choice": "auto", "parallel_tool_calls": False},
    {"response_format": {"type": "text"}, "modalities": ["text"], "verbosity": "medium"},
    {"store": False, "metadata": {}, "service_tier": "auto", "reasoning_effort": "none", "prediction": None},
    {"service_tier": "default", "web_search_options": {}, "audio": None, "metadata": {"note": None}},
    {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
    {"stream": False, "stream_options": None},
    {"stream_options": {"include_usage": True}},
    {"stop": None},
    {"stop": ""},
    {"stop": []},
    {"seed": 1, "n": None, "temperature": None, "top_p": None, "logit_bias": {}, "presence_penalty": 0},
    {"something_of_tomorrow": None},
]
OF_CHAT = [
    {"logprobs": False, "top_logprobs": 0},
    {"max_tokens": 5, "max_completion_tokens": 5},
]
ASKS_FOR_SOMETHING: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "web_search"}]}, "tools.0.type", "invalid_parameter"),
    ({"tool_choice": "required"}, "tool_choice", None),
    ({"response_format": {"type": "structural_tag"}}, "response_format.type", "invalid_parameter"),
    ({"store": True}, "store", "unsupported_parameter"),
    ({"metadata": {"note": "a"}}, "metadata", "unsupported_parameter"),
    ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
    ({"service_tier": "priority"}, "service_tier", "unsupported_parameter"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
    ({"something_of_tomorrow": False}, "something_of_tomorrow", "unknown_parameter"),
    ({"stream_options": {"include_usage": True, "other": 1}}, "stream_options.other", "unknown_parameter"),
]
OF_MESSAGES = [
    ({"role": "assistant", "content": "a", "audio": {"id": "a"}}, "audio", "unsupported_parameter"),
    ({"role": "assistant", "content": "a", "refusal": "no"}, "refusal", "unsupported_parameter"),
    ({"role": "assistant", "content": "a", "mood": "good"}, "mood", "unknown_parameter"),
    ({"role": "user", "content": [{"type": "text", "text": "a", "mood": 1}]}, "content.0.mood", "unknown_parameter"),
    ({"role": "user", "content": None}, "content", "missing_parameter"),
    ({"role": "system"}, "content", "missing_parameter"),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_run(tmp_path_factory.mktemp("runs") / "letters", LETTERS)) as client:
        yield client


def chat(client: Client, messages: list[dict[str, Any]] | None = None, **fields: Any) -> tuple[int, Any]:
    body = {"seed": 1, "max_tokens": 5, "messages": messages or [{"role": "user", "content": "a"}], **fields}
    return client.ask("/v1/chat/completions", **body)


@pytest.mark.parametrize("fields", [*ASKS_FOR_NOTHING, *OF_CHAT], ids=str)
def test_fields_that_ask_for_nothing_change_nothing(client: Client, fields: dict[str, Any]) -> None:
    status, answer = chat(client, **fields)
    assert status == 200, answer
    assert answer["choices"] == chat(client)[1]["choices"]


@pytest.mark.parametrize("fields", [*ASKS_FOR_NOTHING, {"best_of": 1, "suffix": "", "logprobs": None}], ids=str)
def test_fields_that_ask_for_nothing_change_no_completion(client: Client, fields: dict[str, Any]) -> None:
    body = {"prompt": "a", "seed": 1, "max_tokens": 5}
    assert client.text(**body, **{k: v for k, v in fields.items() if k != "seed"}) == client.text(**body)


@pytest.mark.parametrize(("fields", "param", "code"), ASKS_FOR_SOMETHING, ids=str)
def test_a_field_that_asks_for_something_else_is_refused_by_name(
    client: Client, fields: dict[str, Any], param: str, code: str
) -> None:
    status, answer = chat(client, **fields)
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, param, code)


@pytest.mark.parametrize(("message", "param", "code"), OF_MESSAGES, ids=str)
def test_a_field_of_a_message_is_refused_with_its_place(
    client: Client, message: dict[str, Any], param: str, code: str
) -> None:
    status, answer = chat(client, [{"role": "user", "content": "b"}, message])
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, f"messages.1.{param}", code)


def test_an_assistants_message_without_content_is_empty(client: Client) -> None:
    around = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    answers = [
        chat(client, [around[0], {"role": "assistant", **content}, around[1]])
        for content in ({"content": ""}, {"content": None}, {}, {"content": []}, {"content": None, "tool_calls": []})
    ]
    assert {status for status, _ in answers} == {200}
    assert len({answer["choices"][0]["message"]["content"] for _, answer in answers}) == 1


def test_a_part_may_have_fields_that_ask_for_nothing(client: Client) -> None:
    part = {"type": "text", "text": "a", "annotations": [], "logprobs": [], "prompt_cache_breakpoint": None}
    assert chat(client, [{"role": "user", "content": [part]}])[1]["choices"] == chat(client)[1]["choices"]


def test_two_lengths_that_differ_are_refused(client: Client) -> None:
    status, answer = chat(client, max_tokens=5, max_completion_tokens=6)
    assert (status, answer["error"]["param"]) == (400, "max_tokens")


def test_a_history_as_the_python_client_dumps_it_is_read(client: Client) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0) as official:
        params = {"model": "letters", "seed": 1, "max_tokens": 5}
        messages: list[Any] = [{"role": "user", "content": "a"}]
        first = official.chat.completions.create(messages=messages, **params).choices[0].message
        after = {"role": "user", "content": [{"type": "text", "text": "b"}]}
        plain = {"role": "assistant", "content": first.content}
        texts = [
            official.chat.completions.create(messages=[*messages, said, after], **params).choices[0].message.content
            for said in (plain, first, first.model_dump(), first.model_dump(exclude_none=True))
        ]
    assert len(first.model_dump()) > 4
    assert len(set(texts)) == 1
