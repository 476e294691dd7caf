"""`gpt serve`: OpenAI's API, whose texts are those of `gpt sample`, whoever shares the batch."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gpt_cli.cli.main import main
from gpt_cli.config import TokenizerConfig
from gpt_cli.corpus.turn_template import TurnTemplate
from gpt_cli.errors import RequestError, UserError
from gpt_cli.run.load_model import build_model
from gpt_cli.run.open_checkpoint import open_checkpoint
from gpt_cli.serve import server
from gpt_cli.serve.access_control import make_access_policy
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import EngineOptions, ModelRegistry
from gpt_cli.tokenizer import CharTokenizer
from gpt_cli.tokenizer.trainer import train_tokenizer
from tests.support.live_server import LETTERS, SHAPE, Client, make_run, serving

pytestmark = pytest.mark.system

ENGINES = ["native", "torch"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "bytes")
    make_run(folder / "letters", LETTERS, seed=1, prefix="q: ", suffix=" a: ", stop=["z"])
    return folder


@pytest.fixture(scope="module")
def client(runs: Path) -> Iterator[Client]:
    with serving(runs) as client:
        yield client


@pytest.fixture(scope="module")
def torch_client(runs: Path) -> Iterator[Client]:
    with serving(runs, options=EngineOptions(engine="torch")) as client:
        yield client


def sample_json(run: Path, capsys: pytest.CaptureFixture[str], *flags: Any) -> Any:
    capsys.readouterr()
    assert main(["sample", "--run", str(run), "--prefix", "", "--suffix", "", "--json", *map(str, flags)]) == 0
    return json.loads(capsys.readouterr().out)


def sample_flags(options: dict[str, Any]) -> list[str]:
    """The flags of `gpt sample` for options of a request."""
    names = {"max_tokens": "max-new-tokens"}
    flags = []
    for name, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            flags += ["-n", item] if name == "n" else [f"--{names.get(name, name.replace('_', '-'))}", item]
    return flags


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 3, "max_tokens": 50},
        {"temperature": 0},
        {"temperature": 0.7, "top_k": 5, "stop": ["e", "th"]},
        {"top_p": 0.8, "min_p": 0.05, "max_tokens": 33},
        {"regex": "[a-f]+ [g-z]{3}"},
        {"repetition_penalty": 1.3, "no_repeat_ngram": 2, "min_new_tokens": 20, "stop": "a"},
        {"regex": "[abc ]*", "max_tokens": 9},
    ],
    ids=str,
)
def test_the_same_seed_gives_the_text_of_gpt_sample(
    runs: Path, request: Any, capsys: pytest.CaptureFixture[str], engine: str, options: dict[str, Any]
) -> None:
    client = request.getfixturevalue("torch_client" if engine == "torch" else "client")
    for run in ("bytes", "letters"):
        output = sample_json(
            runs / run, capsys, "--prompt", "the ", "--seed", 5, "--engine", "auto", *sample_flags(options)
        )
        status, answer = client.ask("/v1/completions", model=run, prompt="the ", seed=5, **options)
        assert status == 200, answer
        expected = [sample["text"] for sample in output["samples"]]
        assert [choice["text"] for choice in answer["choices"]] == expected
        finish_reasons = {"length": "length", "stop": "stop", "end_of_text": "stop", "match": "stop"}
        reasons = [finish_reasons[sample["finish_reason"]] for sample in output["samples"]]
        assert [choice["finish_reason"] for choice in answer["choices"]] == reasons
        assert answer["usage"]["completion_tokens"] == sum(len(sample["tokens"]) for sample in output["samples"])
        events = client.events("/v1/completions", model=run, prompt="the ", seed=5, **options)
        streamed_texts = ["" for _ in expected]
        for event in events:
            for choice in event["choices"]:
                streamed_texts[choice["index"]] += choice["text"]
        assert streamed_texts == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_a_text_is_the_same_bits_alone_and_among_sixty_others(request: Any, engine: str) -> None:
    client = request.getfixturevalue("torch_client" if engine == "torch" else "client")
    params = [
        {"prompt": "ab"[: 1 + i % 2] * (1 + i % 7), "seed": i, "max_tokens": 5 + 7 * i % 50, "logprobs": 3 * (i % 3)}
        for i in range(60 if engine == "native" else 12)
    ]
    expected = [client.ask("/v1/completions", **body)[1]["choices"] for body in params]
    with ThreadPoolExecutor(60) as pool:
        actual = list(pool.map(lambda body: client.ask("/v1/completions", **body)[1]["choices"], params))
    assert actual == expected


def test_log_probabilities_are_those_of_gpt_sample_and_do_not_change_the_text(
    client: Client, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--prompt", "ab", "--seed", "3", "--temperature", "0.9"]
    assert main(["sample", "--run", str(runs / "bytes"), "--jsonl", *flags]) == 0
    output = json.loads(capsys.readouterr().out)
    params = {"prompt": "ab", "seed": 3, "temperature": 0.9}
    choice = client.ask("/v1/completions", **params, logprobs=4)[1]["choices"][0]
    assert choice["text"] == output["text"] == client.text(**params)
    logprobs = choice["logprobs"]
    assert logprobs["ids"] == output["tokens"]
    assert logprobs["token_logprobs"] == pytest.approx(output["log_probs"], abs=1e-4)
    for token, actual, top_logprobs in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert len(top_logprobs) == 4
        assert top_logprobs.get(token, actual) == actual
        assert max(top_logprobs.values()) >= actual
    for token_id, alternatives in zip(logprobs["ids"], logprobs["likeliest"], strict=True):
        assert sum(alternative["after"] for alternative in alternatives) <= 1 + 1e-9
        assert token_id in range(256)


def test_pieces_of_a_stream_join_to_the_whole_with_its_log_probabilities(client: Client) -> None:
    params: dict[str, Any] = {"prompt": "ab", "seed": 8, "logprobs": 1, "stop": ["e", "\x10"], "echo": True, "n": 2}
    answer = client.ask("/v1/completions", **params)[1]
    events = client.events("/v1/completions", **params, stream_options={"include_usage": True})
    assert events[-1]["object"] == events[0]["object"]
    assert events.pop()["usage"] == answer["usage"]
    assert all(event["usage"] is None for event in events)
    for index, choice in enumerate(answer["choices"]):
        parts = [c for event in events for c in event["choices"] if c["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name in ("tokens", "token_logprobs", "text_offset"):
            assert [x for part in parts if part["logprobs"] for x in part["logprobs"][name]] == choice["logprobs"][name]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]


@pytest.mark.parametrize("engine", ENGINES)
def test_echo_with_logprobs_scores_the_prompt_as_gpt_score_does(
    request: Any, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    client = request.getfixturevalue("torch_client" if engine == "torch" else "client")
    text = "a prompt that is longer than the context has room for"
    file = tmp_path / "text.txt"
    file.write_text(text)
    capsys.readouterr()
    assert main(["score", "--run", str(runs / "bytes"), "--jsonl", str(file)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = [value for line in lines for value in line["log_probs"]]
    answer = client.ask("/v1/completions", prompt=text, echo=True, logprobs=1, max_tokens=0)[1]
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(expected[1:], abs=1e-4)
    assert answer["choices"][0]["text"] == text
    assert answer["usage"]["completion_tokens"] == 0
    longer_answer = client.ask("/v1/completions", prompt=list(text.encode()), echo=True, logprobs=1, max_tokens=1)[1]
    assert longer_answer["choices"][0]["logprobs"]["token_logprobs"][:-1] == logprobs["token_logprobs"]
    score_answer = client.ask("/score", text=text, top_logprobs=2)[1]
    assert [token["logprob"] for token in score_answer["scored"]] == logprobs["token_logprobs"]
    assert score_answer["tokens"] == len(text) - 1


def test_offsets_count_the_characters_before_each_token_of_invalid_bytes_too(client: Client) -> None:
    params = {"prompt": [0xE2, 97, 0x82, 0xC3], "echo": True, "logprobs": 0, "seed": 6, "temperature": 3, "n": 2}
    choices = client.ask("/v1/completions", **params)[1]["choices"]
    streamed: list[list[int]] = [[], []]
    for event in client.events("/v1/completions", **params):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["logprobs"]["text_offset"]
    for choice, offsets in zip(choices, streamed, strict=True):
        ids, logprobs = choice["logprobs"]["ids"], choice["logprobs"]
        assert logprobs["text_offset"] == offsets
        assert choice["text"].startswith("\ufffda\ufffd\ufffd")
        assert offsets[:4] == [0, 1, 2, 3]
        for token, offset in zip(ids[4:], offsets[4:], strict=True):
            character = choice["text"][offset]
            assert character == "\ufffd" or bytes([token]) in [bytes([byte]) for byte in character.encode()]
            assert offset >= 4
        assert sorted(set(offsets)) == list(range(len(choice["text"])))


def test_every_prompt_of_a_request_has_its_n_texts_in_order(client: Client) -> None:
    answer = client.ask("/v1/completions", prompt=["a", "bc"], n=2, seed=4)[1]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for i, prompt in enumerate(["a", "bc"]):
        expected = client.ask("/v1/completions", prompt=prompt, n=2, seed=4)[1]["choices"]
        assert [c["text"] for c in answer["choices"][2 * i : 2 * i + 2]] == [c["text"] for c in expected]
    assert client.text(prompt=[97], seed=4) == client.text(prompt=[[97]], seed=4) == client.text(prompt="a", seed=4)
    assert client.text(prompt=None, seed=4) == client.text(prompt="", seed=4) == client.text(seed=4)


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_prompts_of_a_request_get_the_samples_of_one(request: Any, engine: str) -> None:
    client = request.getfixturevalue("torch_client" if engine == "torch" else "client")
    params = {"seed": 4, "n": 2}
    choices = client.ask("/v1/completions", prompt=["a", "bc", "a", "a"], **params)[1]["choices"]
    texts = [choice["text"] for choice in choices]
    alone = client.ask("/v1/completions", prompt="a", seed=4, n=6)[1]["choices"]
    assert texts[:2] + texts[4:] == [choice["text"] for choice in alone]
    assert len(set(texts)) == len(texts)
    streamed = ["" for _ in texts]
    for event in client.events("/v1/completions", prompt=["a", "bc", "a", "a"], **params):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == texts


def test_penalties_take_off_what_they_say_for_each_token_that_is_there(client: Client) -> None:
    plain_text = client.text(prompt="a", seed=1, temperature=0, max_tokens=60)
    varied_text = client.text(prompt="a", seed=1, temperature=0, max_tokens=60, presence_penalty=2, frequency_penalty=2)
    assert len(set(varied_text)) > len(set(plain_text))
    assert client.text(prompt="a", seed=1, temperature=0, max_tokens=60, presence_penalty=0) == plain_text


def test_the_name_of_a_user_is_taken_and_changes_nothing(client: Client) -> None:
    assert client.text(prompt="a", seed=1, user="somebody") == client.text(prompt="a", seed=1)


def test_a_bias_of_a_hundred_is_a_command(client: Client) -> None:
    assert client.text(prompt="a", logit_bias={"98": 100}, max_tokens=5, seed=1) == "bbbbb"


def test_a_chat_is_what_gpt_chat_would_continue(client: Client) -> None:
    params: dict[str, Any] = {"model": "letters", "seed": 2, "max_tokens": 9}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo"},
        {"role": "user", "content": [{"type": "text", "text": "so"}]},
    ]
    answer = client.ask("/v1/chat/completions", messages=messages, **params)[1]
    expected = client.text(prompt="q: hi a: yo\nq: so a: "[-20:], **params)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": expected}
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["prompt_tokens"] <= 20
    events = client.events("/v1/chat/completions", messages=messages, stream_options={"include_usage": True}, **params)
    assert events.pop()["object"] == "chat.completion.chunk"
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[0]["object"] == "chat.completion.chunk"
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == expected
    logprobs = client.ask("/v1/chat/completions", messages=messages, logprobs=True, top_logprobs=2, **params)[1]
    content = logprobs["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == expected
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    system_chat = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    reply = client.ask("/v1/chat/completions", messages=system_chat, **params)[1]["choices"][0]["message"]["content"]
    assert reply == client.text(prompt="be\nq: hi a: ", **params)


@pytest.mark.parametrize("form", ["chat", "pairs"])
def test_a_chat_with_a_run_that_learned_chats_or_pairs_is_in_its_template(tmp_path: Path, form: str) -> None:
    shape = SHAPE.model_copy(update={"context_length": 30})
    make_run(tmp_path / "run", data={"format": form, "prompt_end": "|", "completion_end": "."}, shape=shape)
    messages = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    if form == "chat":
        messages = [{"role": "system", "content": "s"}, *messages]
    # Of 30 tokens the system's message keeps its 9; the oldest turn is dropped.
    expected_prompt = "system|s.user|c.assistant|" if form == "chat" else "c|"
    params: dict[str, Any] = {"model": "run", "seed": 4, "max_tokens": 12}
    with serving(tmp_path) as client:
        whole = client.ask("/v1/chat/completions", messages=messages, **params)[1]
        answer = whole["choices"][0]["message"]["content"]
        assert (answer, whole["truncated"]) == (client.text(prompt=expected_prompt, **params), True)
        assert "." not in answer
        long = [*messages[:-1], {"role": "user", "content": "0123456789" * 9}]  # keeps its role, and the end
        whole = client.ask("/v1/chat/completions", messages=long, **params)[1]
        expected_prompt = "system|s.user|56789.assistant|" if form == "chat" else ("0123456789" * 9)[-29:] + "|"
        assert whole["choices"][0]["message"]["content"] == client.text(prompt=expected_prompt, **params)
        assert (whole["truncated"], whole["usage"]["prompt_tokens"]) == (True, 30)
        ends = {**params, "logit_bias": {str(ord(".")): 100}, "stop": ["y", "z"]}  # the end of an answer stays one
        answer = client.ask("/v1/chat/completions", messages=messages, **ends)[1]["choices"][0]
        assert (answer["message"]["content"], answer["finish_reason"]) == ("", "stop")
        status, refusal = client.ask("/v1/chat/completions", messages=[{"role": "bot", "content": "x"}], **params)
    assert status == 400
    assert "role" in refusal["error"]["message"]
    assert "assistant" in refusal["error"]["message"]


@pytest.mark.parametrize("roles", ["uu", "usu", "uaau", "au", "s", "ua", "suau", "ssu", "ud", "a"])
def test_the_messages_of_a_learned_chat_are_those_of_its_exported_template_in_any_order(
    tmp_path: Path, roles: str
) -> None:
    data = {"format": "chat", "prompt_end": "|", "completion_end": "."}
    make_run(tmp_path / "run", data=data, shape=SHAPE.model_copy(update={"context_length": 200}))
    names = {"u": "user", "s": "system", "a": "assistant", "d": "developer"}
    messages = [{"role": names[role], "content": f"{role}{n}"} for n, role in enumerate(roles)]
    learned = [{**one, "role": one["role"].replace("developer", "system")} for one in messages]
    source = TurnTemplate("chat", "|", ".").to_jinja()
    expected = ImmutableSandboxedEnvironment().from_string(source).render(messages=learned, add_generation_prompt=True)
    params: dict[str, Any] = {"model": "run", "seed": 4, "max_tokens": 12}
    with serving(tmp_path) as client:
        answer = client.ask("/v1/chat/completions", messages=messages, **params)[1]
        assert answer["usage"]["prompt_tokens"] == len(expected)
        assert answer["choices"][0]["message"]["content"] == client.text(prompt=expected, **params)


@pytest.mark.parametrize("form", ["chat", "pairs", "text"])
def test_a_system_message_of_more_than_half_of_the_context_is_refused(tmp_path: Path, form: str) -> None:
    make_run(tmp_path / "run", data={"format": form})
    messages = [{"role": "system", "content": "be brief, be brief"}, {"role": "user", "content": "c"}]
    with serving(tmp_path) as client:
        status, answer = client.ask("/v1/chat/completions", model="run", messages=messages)
    assert (status, answer["error"]["param"]) == (400, "messages")
    assert "more than half of the context of 20" in answer["error"]["message"]


@pytest.mark.parametrize("form", ["chat", "pairs"])
def test_a_message_that_imitates_the_template_is_refused(tmp_path: Path, form: str) -> None:
    make_run(tmp_path / "run", data={"format": form})
    for role, text in (("user", "a\x02"), ("user", "a\x03system\x02b"), ("system", "a\x03user\x02b"))[
        : 2 + (form == "chat")
    ]:
        messages = [{"role": role, "content": text}, {"role": "user", "content": "c"}]
        with serving(tmp_path) as client:
            status, answer = client.ask("/v1/chat/completions", model="run", messages=messages)
        assert (status, answer["error"]["param"]) == (400, "messages")
        assert "which only the template of the run has" in answer["error"]["message"]


def test_an_answer_to_what_the_model_does_not_see_whole_says_so(client: Client) -> None:
    requests: list[tuple[str, dict[str, Any], bool]] = [
        ("/v1/completions", {"prompt": "x" * 20}, False),
        ("/v1/completions", {"prompt": "x" * 21}, True),
        ("/v1/completions", {"prompt": ["x", "x" * 21]}, True),
        ("/v1/completions", {"prompt": "x" * 21, "echo": True, "max_tokens": 0}, True),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 13}]}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 14}]}, True),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 9}] * 2}, True),
    ]
    for path, body, expected in requests:
        body = {"model": "letters" if "messages" in body else "bytes", "max_tokens": 2, **body}
        assert client.ask(path, **body)[1]["truncated"] is expected, body
        assert {event["truncated"] for event in client.events(path, **body)} == {expected}


def test_a_message_that_does_not_fit_even_without_its_text_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "run", data={"format": "chat"}, shape=SHAPE.model_copy(update={"context_length": 15}))
    with serving(tmp_path) as client:
        status, answer = client.ask("/v1/chat/completions", messages=[{"role": "user", "content": "hello"}])
    assert (status, answer["error"]["param"]) == (400, "messages")
    assert "a message has 16 tokens even without its text, and the context 15" in answer["error"]["message"]


def test_a_system_message_needs_no_newline_of_a_vocabulary_without_one(tmp_path: Path) -> None:
    make_run(tmp_path / "run", tokenizer=CharTokenizer("Be"))
    messages = [{"role": "system", "content": "Be"}, {"role": "user", "content": "e"}]
    with serving(tmp_path) as client:
        assert client.ask("/v1/chat/completions", model="run", messages=messages, max_tokens=1)[0] == 200
        messages[0]["content"] = "?"
        status, answer = client.ask("/v1/chat/completions", model="run", messages=messages)
    assert (status, answer["error"]["param"]) == (400, "messages")


def test_texts_become_tokens_and_tokens_texts(client: Client) -> None:
    output = client.ask("/tokenize", text="aä")[1]
    assert output["tokens"] == [97, 195, 164]
    assert output["pieces"] == ["a", "bytes:\\xc3", "bytes:\\xa4"]
    assert client.ask("/detokenize", tokens=output["tokens"])[1] == {"prompt": "aä"}


def test_a_text_names_special_tokens_only_if_it_is_asked_for_and_never_in_a_chat(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["a b"], TokenizerConfig(kind="bpe", vocab_size=257))
    make_run(tmp_path / "run", tokenizer)
    text = "a<|endoftext|>b"
    a, b = (int(tokenizer.encode(letter)[0]) for letter in "ab")
    tokens, spelled = [a, tokenizer.eot_id, b], tokenizer.encode(text).tolist()
    params: dict[str, Any] = {"echo": True, "logprobs": 0, "max_tokens": 0}
    with serving(tmp_path) as client:
        values = {"parse_special": True}, {"parse_special": False}, {"parse_special": None}, {}
        for special in values:
            expected = tokens if special.get("parse_special") else spelled
            logprobs = client.ask("/v1/completions", prompt=text, **params, **special)[1]["choices"][0]["logprobs"]
            assert logprobs["ids"] == expected
            answer = client.ask("/v1/completions", prompt=["b", text], **params, **special)[1]
            assert answer["choices"][1]["logprobs"] == logprobs
            assert client.ask("/tokenize", text=text, **special)[1]["tokens"] == expected
            scored = client.ask("/score", text=text, **special)[1]
            assert [one["id"] for one in scored["scored"]] == expected
            assert [one["logprob"] for one in scored["scored"]] == logprobs["token_logprobs"]
            assert scored["bytes"] == len(text) - 1
        messages = [{"role": "user", "content": text}]
        status, answer = client.ask("/v1/chat/completions", messages=messages, parse_special=True)
    assert (status, answer["error"]["param"]) == (400, "parse_special")


def test_an_empty_text_is_told_to_be_empty(client: Client) -> None:
    status, answer = client.ask("/score", text="")
    assert (status, answer["error"]["message"]) == (400, "the text is empty")


def test_a_run_named_twice_is_one_and_another_of_its_name_is_refused(runs: Path, tmp_path: Path) -> None:
    twice = [runs / "bytes", runs / "letters" / ".." / "bytes"]
    assert list(ModelRegistry(twice, EngineOptions(), pytest.fail).paths.values()) == [runs / "bytes"]
    with pytest.raises(RequestError, match="two runs are called bytes"):
        ModelRegistry([runs / "bytes", make_run(tmp_path / "bytes")], EngineOptions(), pytest.fail)


def test_a_run_with_an_at_sign_in_its_name_is_served_by_it(tmp_path: Path) -> None:
    registry = ModelRegistry([make_run(tmp_path / "v@2"), make_run(tmp_path / "v")], EngineOptions(), pytest.fail)
    assert asyncio.run(registry.open_first()).name == "v@2"
    for name in ("v@2", "v@2@0", "v@0"):
        assert asyncio.run(registry.get(name)).name == name
    for name in ("v@3", "v@2@1", "@0", "w@2"):
        with pytest.raises(ApiError) as caught:
            asyncio.run(registry.get(name))
        assert caught.value.status == 404


def test_a_run_without_a_checkpoint_is_not_served_and_that_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a-begun")
    shutil.rmtree(tmp_path / "a-begun/checkpoints")
    whole = make_run(tmp_path / "whole")
    notes: list[str] = []
    assert list(ModelRegistry([tmp_path], EngineOptions(), notes.append).paths) == ["whole"]
    assert notes == [f"{tmp_path / 'a-begun'} is not served: it has no checkpoint yet"]
    with pytest.raises(RequestError, match="a-begun has no checkpoint yet"):
        ModelRegistry([whole, tmp_path / "a-begun"], EngineOptions(), notes.append)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stop_string_across_the_minimum_ends_a_text_whole_and_streamed(request: Any, engine: str) -> None:
    client = request.getfixturevalue("torch_client" if engine == "torch" else "client")
    params = {"model": "letters", "prompt": "a", "seed": 3, "max_tokens": 20, "stop": []}
    text = client.text(**params)
    assert len(text) == 20  # a token is a character
    for least, begin, size in ((0, 5, 3), (4, 2, 4), (4, 3, 2), (4, 4, 1), (8, 0, 9), (4, 0, 4)):
        stop = text[begin : begin + size]
        ends = [end for end in range(least + 1, 21) if text[:end].endswith(stop)]
        expected = text[: ends[0] - size] if ends else text
        stopped = {**params, "stop": ["never", stop], "min_new_tokens": least}
        answer = client.ask("/v1/completions", **stopped)[1]
        assert answer["choices"][0]["text"] == expected
        assert answer["usage"]["completion_tokens"] == (ends[0] if ends else 20)
        events = client.events("/v1/completions", **stopped)
        assert "".join(choice["text"] for event in events for choice in event["choices"]) == expected


def test_fewer_tokens_than_the_least_are_refused(client: Client) -> None:
    status, answer = client.ask("/v1/completions", prompt="a", max_tokens=3, min_new_tokens=10)
    assert (status, answer["error"]["param"]) == (400, "min_new_tokens")


def test_a_run_of_a_folder_that_cannot_be_served_is_left_out_and_a_named_one_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("a-classes", "b-damaged", "c-whole"):
        make_run(folder / name)
    config = folder / "a-classes/config.yaml"
    config.write_text(config.read_text().replace("kind: language", "kind: classes"))
    for model in (folder / "b-damaged").glob("checkpoints/*/model.safetensors"):
        model.write_bytes(model.read_bytes()[:-1])
    notes: list[str] = []
    registry = ModelRegistry([folder], EngineOptions(), notes.append)
    assert asyncio.run(registry.open_first()).name == "c-whole"
    assert list(registry.paths) == ["c-whole"]
    assert any(f"{folder / 'a-classes'} is not served" in note for note in notes)
    assert any(f"{folder / 'b-damaged'} is not served" in note for note in notes)
    with pytest.raises(UserError, match="b-damaged"):
        asyncio.run(ModelRegistry([folder / "b-damaged"], EngineOptions(), notes.append).open_first())


def test_a_run_that_was_moved_away_before_its_first_use_is_said_to_be_gone(tmp_path: Path) -> None:
    notes: list[str] = []
    registry = ModelRegistry([make_run(tmp_path / "a"), make_run(tmp_path / "b")], EngineOptions(), notes.append)
    (tmp_path / "b").rename(tmp_path / "c")
    with pytest.raises(ApiError, match="the model b is no longer where it was") as caught:
        asyncio.run(registry.get("b"))
    assert caught.value.status == 503
    with pytest.raises(ApiError, match="the model b is no longer where it was"):
        asyncio.run(registry.get("b@1"))
    assert notes == [f"{tmp_path / 'b'}, which was to be served as b, is no longer there"]


def test_all_runs_that_are_served_are_named(runs: Path) -> None:
    notes: list[str] = []
    with server.bind("127.0.0.1", 0) as listener:
        asyncio.run(
            server.serve(
                [runs],
                listener,
                make_access_policy("127.0.0.1", (), (), None),
                Limits(),
                EngineOptions(),
                notes.append,
                started=lambda started: setattr(started, "should_exit", True),
            )
        )
    assert notes[0].startswith("bytes, step 0")
    assert notes[1] == "also served: letters"


def test_models_are_listed_by_the_names_of_their_folders(client: Client) -> None:
    assert [model_info["id"] for model_info in client.get("/v1/models")[1]["data"]] == ["bytes", "letters"]
    assert client.get("/v1/models/letters")[1]["vocab_size"] == LETTERS.vocab_size
    for model_info in client.get("/v1/models")[1]["data"]:
        assert model_info["created"] == client.get(f"/v1/models/{model_info['id']}")[1]["created"] > 0
    assert client.get("/v1/models/bytes@0")[1]["step"] == 0
    status, answer = client.ask("/v1/completions", model="../secret", prompt="a")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_health_and_metrics_are_served(client: Client) -> None:
    client.text(prompt="a", max_tokens=3)
    assert client.get("/health")[1]["status"] == "ok"
    status, headers, body = client.send("GET", "/metrics")
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
    assert b"gpt_tokens_total" in body
    assert b'gpt_requests_total{path="/v1/completions",status="200"}' in body


def test_other_verbs_start_without_the_packages_of_the_server() -> None:
    source = (
        "import sys; from gpt_cli.cli.main import main; main(['--help']); main(['serve', '--help']);"
        "print([name for name in ('fastapi', 'uvicorn', 'starlette', 'torch', 'numpy') if name in sys.modules])"
    )
    completed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert completed.stdout.splitlines()[-1] == "[]"


def test_without_the_extra_serve_says_how_to_get_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("gpt_cli.serve", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(runs / "bytes")]) == 1
    assert "hint: pip install 'gpt-cli[serve]'" in capsys.readouterr().err


def test_the_end_of_text_is_a_token_with_a_log_probability(tmp_path: Path) -> None:
    """Or lm-eval, which leaves out the one token that it has written, would leave out one of the text."""
    text = "the end of a text\n" * 40
    tokenizer = train_tokenizer([text], TokenizerConfig(kind="bpe", vocab_size=260))
    assert tokenizer.eot_id is not None
    with serving(make_run(tmp_path / "run", tokenizer)) as client:
        params = {"prompt": "the", "echo": True, "logprobs": 1, "max_tokens": 1}
        answer = client.ask("/v1/completions", **params, logit_bias={str(tokenizer.eot_id): 100})[1]
        choice = answer["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("the", "stop")
        assert choice["logprobs"]["ids"] == [*tokenizer.encode("the"), tokenizer.eot_id]


def test_lm_evals_request_scores_continuations_as_the_network_does(client: Client, runs: Path) -> None:
    """`local-completions` sends tokens with echo, reads `[ctxlen:-1]`, and takes the first of the top as greedy."""
    model = build_model(open_checkpoint(runs / "bytes", print), torch.device("cpu")).model
    pairs = [(b"the ", b"answer"), (b"a", b"bc"), (b"no ", b"\xc3\xa4!")]
    rows = [list(context + continuation) for context, continuation in pairs]
    status, answer = client.ask(
        "/v1/completions", model="bytes", prompt=rows, temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True
    )
    assert status == 200, answer
    for (context, _), row, choice in zip(pairs, rows, answer["choices"], strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([row]))[0].log_softmax(-1)
        start, logprobs = len(context), choice["logprobs"]
        actual = logprobs["token_logprobs"][start:-1]
        assert actual == pytest.approx([float(expected[i - 1, row[i]]) for i in range(start, len(row))], abs=1e-3)
        max_logprobs = [max(top.values()) for top in logprobs["top_logprobs"][start:-1]]
        is_greedy = [value == top for value, top in zip(actual, max_logprobs, strict=True)]
        assert is_greedy == [int(expected[i - 1].argmax()) == row[i] for i in range(start, len(row))]
