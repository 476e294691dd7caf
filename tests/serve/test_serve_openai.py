"""OpenAI's own client against `gpt serve`: what it sends is understood, and what it gets it understands."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpt_cli.serve.limits import Limits
from tests.support.live_server import LETTERS, Client, make_run, serving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

openai = pytest.importorskip("openai")
MODEL = "letters"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("runs")
    keys = folder / "keys"
    keys.write_text("a-key")
    with serving(make_run(folder / MODEL, LETTERS), keys=keys, limits=Limits(seats=2, queue=2)) as client:
        yield client


@pytest.fixture
def client(server: Client) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="a-key", max_retries=0) as client:
        yield client


def test_completions_whole_and_streamed_are_one_text(client: Any) -> None:
    params = {"model": MODEL, "prompt": "the ", "seed": 3, "max_tokens": 30, "n": 2, "stop": ["zz"], "logprobs": 2}
    completion = client.completions.create(**params)
    streamed = ["", ""]
    for chunk in client.completions.create(**params, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
        usage = chunk.usage
    assert streamed == [choice.text for choice in completion.choices]
    assert usage == completion.usage
    assert completion.choices[0].logprobs.token_logprobs[0] <= 0
    assert len(completion.choices[0].logprobs.top_logprobs[0]) == 2
    assert completion.choices[0].finish_reason == "length"


def test_chat_whole_and_streamed_are_one_answer(client: Any) -> None:
    params = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "seed": 1, "max_completion_tokens": 9}
    completion = client.chat.completions.create(**params, logprobs=True, top_logprobs=1)
    deltas = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**params, stream=True)]
    assert "".join(deltas) == completion.choices[0].message.content
    assert len(completion.choices[0].logprobs.content) == completion.usage.completion_tokens == 9


def test_our_own_parameters_go_into_extra_body(client: Any) -> None:
    params = {"model": MODEL, "prompt": "a", "max_tokens": 4, "extra_body": {"regex": "[xy]{4}", "top_k": 20}}
    assert set(client.completions.create(**params).choices[0].text) <= set("xy")
    completion = client.completions.create(model=MODEL, prompt="a", max_tokens=9, extra_body={"choices": ["yes", "no"]})
    assert completion.choices[0].text in ("yes", "no")
    assert completion.choices[0].finish_reason == "stop"


def test_models_are_those_that_are_served(client: Any) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_become_the_clients_exceptions(client: Any, server: Client) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="a", best_of=3)
    assert (refused.value.param, refused.value.code) == ("best_of", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=MODEL, prompt="a", temperature=-1)
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(openai.BadRequestError, match="Input should be 'text'") as refused:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": [image]}])
    assert refused.value.param == "messages.0.content.0.type"
    for own in ({"regex": "(a"}, {"regex": "9"}, {"choices": ["a"], "regex": "a"}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model=MODEL, prompt="a", extra_body=own)
        assert refused.value.param == next(iter(own))
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-5", prompt="a")
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="another", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_the_client_comes_back_after_429_and_gets_its_text(server: Client, client: Any) -> None:
    params: dict[str, Any] = {"model": MODEL, "prompt": "a", "seed": 1, "max_tokens": 5}
    expected = client.completions.create(**params).choices[0].text
    with ThreadPoolExecutor(8) as pool, server.held():
        full = pool.submit(client.completions.create, **params, n=2)
        wait_until(lambda: server.scheduler.waiting + server.scheduler.running == 2)
        with pytest.raises(openai.RateLimitError):
            client.completions.create(**params)
        patient = client.with_options(max_retries=100)
        waiting = [pool.submit(patient.completions.create, **params) for _ in range(2)]
    assert [future.result().choices[0].text for future in [full, *waiting]] == [expected] * 3
