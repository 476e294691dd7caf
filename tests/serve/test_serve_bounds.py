"""`gpt serve` under load and under attack: bounded, and nobody pays for what another client does."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.errors import RequestError, UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import load, save
from gpt_cli.serve.access_control import make_access_policy
from gpt_cli.serve.chat_schemas import ChatRequest, ResponseRequest
from gpt_cli.serve.connection import Connection
from gpt_cli.serve.generation_request import _COMPILER
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.request_schemas import CompletionRequest
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer
from tests.support.command import subprocess_env
from tests.support.live_server import SHAPE, Client, make_run, serving
from tests.support.waiting import HANG, wait_until

pytestmark = pytest.mark.robust

ENDLESS = 10**9


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "bytes")


@pytest.fixture(scope="module")
def client(run: Path) -> Iterator[Client]:
    limits = Limits(seats=8, queue=8, prompt_tokens=100, max_tokens=ENDLESS, body=20_000, body_seconds=1)
    with serving(run, limits=limits) as client:
        yield client


def open_stream(client: Client, **content: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A stream of which the first event has come."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=HANG)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "stream": True, **content}))
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.readline().startswith(b"data: ")
    return connection, answer


def test_beyond_the_queue_a_request_gets_429_and_no_other_is_lost(client: Client) -> None:
    expected = [client.text(prompt="a", seed=i) for i in range(16)]
    with ThreadPoolExecutor(17) as pool:
        with client.held():
            first = [pool.submit(client.text, prompt="a", seed=i) for i in range(8)]
            wait_until(lambda: client.scheduler.waiting + client.scheduler.running == 8)
            # no seat is given while the thread is held, so that the eight wait
            status, headers, body = client.send("POST", "/v1/completions", json.dumps({"n": 8}).encode())
            assert status == 429
            assert int(headers["retry-after"]) >= 1
            assert json.loads(body)["error"]["code"] == "queue_full"
            assert json.loads(body)["error"]["type"] == "overloaded_error"
        assert [future.result(HANG) for future in first] == expected[:8]
    wait_until(lambda: client.scheduler.running + client.scheduler.waiting == 0)


def test_a_client_that_goes_away_frees_its_seats_and_nobody_elses(client: Client) -> None:
    expected = client.text(prompt="b", seed=1, max_tokens=300)
    with ThreadPoolExecutor(1) as pool:
        streams = [open_stream(client, n=2, max_tokens=ENDLESS) for _ in range(3)]
        future = pool.submit(client.text, prompt="b", seed=1, max_tokens=300)
        wait_until(lambda: client.scheduler.running >= 6)
        for connection, answer in streams:
            answer.close()
            connection.close()
        assert future.result(HANG) == expected
    wait_until(lambda: client.scheduler.running == 0)
    assert b'gpt_texts_total{ended="cancelled"}' in client.send("GET", "/metrics")[2]


def test_a_client_that_does_not_wait_for_the_whole_frees_its_seat(client: Client) -> None:
    with socket.create_connection(("127.0.0.1", client.port)) as caller:
        body = json.dumps({"max_tokens": ENDLESS}).encode()
        caller.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body))
        caller.sendall(body)
        wait_until(lambda: client.scheduler.running == 1)
    wait_until(lambda: client.scheduler.running == 0)


def test_a_pattern_that_takes_long_to_compile_holds_up_patterns_alone_and_those_no_longer_than_their_time(
    run: Path,
) -> None:
    compiled = threading.Event()
    with serving(run, limits=Limits(seconds=0.5)) as client:
        _COMPILER.submit(compiled.wait)
        try:
            status, answer = client.ask("/v1/completions", prompt="a", regex="[a-z]+", max_tokens=3)
            assert (status, answer["error"]["code"]) == (504, "timeout")
            assert client.send("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 0}')[0] == 200
        finally:
            compiled.set()


def test_a_request_that_only_scores_ends_when_its_time_is_up_too(run: Path) -> None:
    with serving(run, limits=Limits(seconds=1e-6)) as client:
        for path, body in {"/score": {"text": "ab" * 40}, "/v1/completions": {"prompt": "ab" * 40}}.items():
            wanted = {} if path == "/score" else {"max_tokens": 0, "echo": True, "logprobs": 0}
            status, answer = client.ask(path, **body, **wanted)
            assert (status, answer["error"]["code"]) == (504, "timeout")


def test_an_answer_that_is_cut_off_by_the_end_of_the_server_is_an_error_of_the_api(run: Path) -> None:
    with serving(run, limits=Limits(max_tokens=ENDLESS), drain=0) as client:
        answers: list[tuple[int, Any]] = []
        body = {"prompt": "a", "max_tokens": ENDLESS}
        asking = threading.Thread(target=lambda: answers.append(client.ask("/v1/completions", **body)))
        asking.start()
        wait_until(lambda: client.scheduler.running == 1)
        client.server.should_exit = True
        asking.join(HANG)
    ((status, answer),) = answers
    assert (status, answer["error"]["message"]) == (503, "the server is ending")


def test_a_request_ends_when_its_time_is_up(run: Path) -> None:
    with serving(run, limits=Limits(seconds=0.2, max_tokens=ENDLESS)) as client:
        status, answer = client.ask("/v1/completions", prompt="a", max_tokens=ENDLESS)
        assert (status, answer["error"]["code"]) == (504, "timeout")
        last = client.events("/v1/completions", prompt="a", max_tokens=ENDLESS)[-1]
        assert last["error"]["code"] == "timeout"
        assert client.text(prompt="a", max_tokens=3)


def test_a_choice_that_the_vocabulary_cannot_spell_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "run", CharTokenizer("abc"))
    with serving(tmp_path) as client:
        status, answer = client.ask("/v1/completions", model="run", prompt="a", choices=["ab", "ax"])
        assert client.text(model="run", prompt="a", choices=["ab", "c"]) in ("ab", "c")
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, "choices", "unknown_characters")
    assert "'ax' has characters that the vocabulary lacks: x" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ({"max_tokens": ENDLESS + 1}, "max_tokens"),
        ({"n": 17}, "n"),
        ({"n": 9}, "n"),  # more than ever fit, however long it waits
        ({"prompt": ["a"] * 100, "n": 2}, "n"),
        ({"prompt": [1] * 200}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": [256]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"model": ""}, "model"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"50256": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"best_of": 2}, "best_of"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"suffix": "b"}, "suffix"),
        ({"temprature": 1}, "temprature"),
        ({"regex": "("}, None),
        ({"regex": "a", "choices": ["b"]}, None),
        ({"regex": "é", "max_tokens": 5, "grammar": "start: x"}, None),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
        ({"model": "other"}, "model"),
    ],
    ids=str,
)
def test_what_is_wrong_or_not_supported_is_refused_by_name(client: Client, content: dict[str, Any], param: str) -> None:
    status, answer = client.ask("/v1/completions", **content)
    assert status == (404 if param == "model" else 400), answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    if param is not None:
        assert answer["error"]["param"] == param
        assert param.partition(".")[0] in answer["error"]["message"] or "texts" in answer["error"]["message"]
    assert "\n" not in answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", '{"stop": ["x"' + ', "x"' * 16 + "]}", "at most 16 items"),
        ("/v1/completions", '{"stop": ["x", 5]}', "stop.1: Input should be a valid string"),
        ("/v1/completions", '{"prompt": "a", "prompt": "b"}', "the body has the key 'prompt' twice"),
        ("/v1/completions", '{"regex": "a(?=b)", "max_tokens": 5}', "regex: look-around"),
        ("/detokenize", '{"tokens": [999]}', "tokens: there is no token 999"),
    ],
)
def test_a_refusal_names_what_is_wrong_and_as_the_api_does(client: Client, path: str, body: str, message: str) -> None:
    status, _, answer = client.send("POST", path, body.encode())
    assert status == 400
    assert message in json.loads(answer)["error"]["message"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "\x00", "a" * 300, 10**400, -1, 0, 1e308]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        *CompletionRequest.model_fields,
        *ChatRequest.model_fields,
        *ResponseRequest.model_fields,
        *("text", "tokens", "tools", "top_logprobs"),
    ]
)
PATHS = st.sampled_from(
    ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize", "/score"]
)


@settings(max_examples=300)
@given(path=PATHS, content=st.dictionaries(NAMES, VALUES, max_size=4), raw=st.none() | st.binary(max_size=40))
def test_no_request_is_answered_by_a_bug(client: Client, path: str, content: dict[str, Any], raw: bytes | None) -> None:
    body = json.dumps({"max_tokens": 3, **content}).encode() if raw is None else raw
    status, headers, answer = client.send("POST", path, body)
    assert status == 200 or 400 <= status < 500, answer
    if status != 200:
        assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}
        assert headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"null", 400),
        (b"[1]", 400),
        (b'{"prompt": "a"', 400),
        (b'{"prompt": "\xff"}', 400),
        (b'{"prompt": "\\ud800"}', 400),
        (b'{"prompt": NaN}', 400),
        (b'{"seed": ' + b"9" * 5000 + b"}", 400),
        (b"[" * 9000, 400),
        (b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
        (b'{"a": ' * 100 + b"1" + b"}" * 100, 400),
        (b'{"prompt": "' + b"a" * 20_000 + b'"}', 413),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_not_a_request_is_refused_in_openais_shape(client: Client, body: bytes, status: int) -> None:
    actual, _, answer = client.send("POST", "/v1/completions", body)
    assert actual == status
    assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}


def test_a_body_of_unknown_length_is_bounded_too(client: Client) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=HANG)
    connection.request("POST", "/v1/completions", iter([b" " * 5000] * 5), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_body_that_does_not_come_is_not_waited_for(client: Client) -> None:
    with socket.create_connection(("127.0.0.1", client.port), HANG) as caller:
        caller.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        assert caller.recv(100).startswith(b"HTTP/1.1 408")


def test_a_head_that_does_not_come_is_not_waited_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.1)
    with serving(run) as client:
        for sent in (b"", b"GET /health HTTP/1.1\r\nHost: lo"):
            with socket.create_connection(("127.0.0.1", client.port), HANG) as caller:
                caller.sendall(sent)
                assert _ended(caller)
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=HANG)
        for _ in range(2):  # a connection that is kept
            connection.request("GET", "/health")
            assert connection.getresponse().read()
        connection.close()


def _ended(caller: socket.socket) -> bool:
    try:
        return caller.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("path", ["/nothing", "/../../etc/passwd", "/v1/models/%2e%2e%2fetc", "/v1", "/docs"])
def test_nothing_is_served_but_the_routes(client: Client, path: str) -> None:
    status, _, body = client.send("GET", path)
    assert status == 404
    assert json.loads(body)["error"]["type"] == "not_found_error"
    assert client.send("PUT", "/v1/completions")[0] == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "localhost@evil"])
def test_another_name_for_this_machine_is_refused(client: Client, host: str) -> None:
    status, _, body = client.send("GET", "/v1/models", headers={"Host": host})
    assert (status, json.loads(body)["error"]["code"]) == (403, "host")
    for allowed in ("localhost", "LOCALHOST:1", "[::1]:80", "127.0.0.1"):
        assert client.send("GET", "/v1/models", headers={"Host": allowed})[0] == 200


def test_pages_of_others_may_not_ask_unless_they_are_let(client: Client, run: Path) -> None:
    for origin in ("https://evil.example", "null"):
        assert client.send("GET", "/v1/models", headers={"Origin": origin})[0] == 403
    assert client.send("GET", "/v1/models", headers={"Origin": client.url, "Host": client.url[7:]})[0] == 200
    with serving(run, origins=("https://chat.example",)) as permissive:
        status, headers, _ = permissive.send("GET", "/v1/models", headers={"Origin": "https://chat.example"})
        assert (status, headers["access-control-allow-origin"]) == (200, "https://chat.example")


def test_a_key_is_asked_for_where_there_are_any(run: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-key\n\nsecond-key\n")
    with serving(run, keys=keys) as client:
        for header, status in (
            (None, 401),
            ("Bearer ", 401),
            ("Bearer first-ke", 401),
            ("Basic first-key", 401),
            ("Bearer first-key", 200),
            ("bearer second-key", 200),
        ):
            headers = {} if header is None else {"Authorization": header}
            for path in ("/v1/models", "/metrics"):
                assert client.send("GET", path, headers=headers)[0] == status
        assert client.get("/health")[0] == 200


def test_a_key_that_no_header_can_hold_is_told_by_its_line_and_not_shown(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    for content in (b"first-key\n\na secret\n", b"first-key\n\nsecr\xc3\xa9t\n"):
        keys.write_bytes(content)
        with pytest.raises(UserError) as caught:
            make_access_policy("127.0.0.1", (), (), keys)
        assert caught.value.where == f"{keys}:3"
        assert "without spaces" in (caught.value.hint or "")
        assert "secr" not in caught.value.render().replace(str(keys), "")
    keys.write_text("\n")
    with pytest.raises(UserError, match="it has no key"):
        make_access_policy("127.0.0.1", (), (), keys)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost", "LOCALHOST"])
def test_an_address_that_only_this_machine_reaches_needs_no_keys(host: str) -> None:
    assert make_access_policy(host, (), (), None).hosts is not None


@pytest.mark.parametrize("host", ["", "http://127.0.0.1", "[::1]", "127.0.0.1:8000"])
def test_what_is_no_address_is_refused_as_such(host: str) -> None:
    with pytest.raises(RequestError, match="is no address to listen on"):
        make_access_policy(host, (), (), None)


def test_a_star_is_no_host() -> None:
    with pytest.raises(RequestError, match="a Host is a name"):
        make_access_policy("127.0.0.1", ("*",), (), None)


def test_beyond_this_machine_there_is_no_server_without_keys(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no key") as refused:
        make_access_policy("0.0.0.0", (), (), None)
    assert refused.value.hint is not None
    keys = tmp_path / "keys"
    keys.write_text("k" * 20)
    assert make_access_policy("0.0.0.0", (), (), keys).hosts is None
    assert "a.example" in (make_access_policy("0.0.0.0", ("a.example",), (), keys).hosts or ())


def test_a_new_checkpoint_is_taken_up_and_no_text_is_dropped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with serving(run, limits=Limits(max_tokens=ENDLESS), follow=0.01) as client:
        before = client.text(prompt="a", seed=1)
        connection, answer = open_stream(client, max_tokens=ENDLESS)
        torch.manual_seed(9)
        first = load(run / "checkpoints" / "step-00000000")
        save(run, 7, GPT(SHAPE, 256).state_dict(), {}, {}, first.config, ByteTokenizer())
        wait_until(lambda: client.get("/v1/models/run")[1]["step"] == 7)
        assert client.scheduler.running == 1
        events = [json.loads(line[6:]) for line in [answer.readline() for _ in range(40)] if line.strip()]
        assert {event["step"] for event in events} == {0}
        assert client.text(prompt="a", seed=1) != before
        assert client.text(model="run@0", prompt="a", seed=1) == before
        answer.close()
        connection.close()


def test_sigterm_lets_what_is_written_come_to_its_end(run: Path) -> None:
    command = [sys.executable, "-m", "gpt_cli", "serve", str(run), "--port", "0", "--max-tokens", "100000"]
    environment = subprocess_env()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "http://" in line)
        port = int(line.rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
        connection.request("POST", "/v1/completions", json.dumps({"max_tokens": 3000, "seed": 1, "stream": True}))
        answer = connection.getresponse()
        assert answer.readline()
        process.send_signal(signal.SIGTERM)
        assert answer.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        assert process.wait(HANG) == -signal.SIGTERM
        assert "Traceback" not in process.stderr.read()


def test_nothing_is_left_after_many_requests_that_went_wrong(client: Client) -> None:
    client.text(prompt="a")
    threads = threading.active_count()
    for i in range(100):
        with socket.create_connection(("127.0.0.1", client.port)) as caller:
            caller.sendall([b"\x16\x03\x01", b"GET / HTTP/9\r\n\r\n", b"POST /score HTTP/1.1\r\n\r\n", b"\r\n"][i % 4])
        client.ask("/v1/completions", prompt=[300], stream=True)
    wait_until(lambda: len(client.server.server_state.connections) == 0)
    assert threading.active_count() <= threads + 1
    assert client.scheduler.running == client.scheduler.waiting == 0


HEADERS = st.dictionaries(
    st.sampled_from(
        ["Host", "Origin", "Authorization", "Content-Length", "Transfer-Encoding", "Expect", "Upgrade", "X"]
    ),
    st.text(st.characters(max_codepoint=255), max_size=20)
    | st.sampled_from(["localhost", "chunked", "7", "-1", "9" * 30]),
    max_size=5,
)


@settings(max_examples=150)
@given(
    line=st.sampled_from([b"GET / HTTP/1.1", b"POST /score HTTP/1.1", b"POST /v1/completions HTTP/1.0", b"X", b"\x00"])
    | st.binary(max_size=30),
    headers=HEADERS,
    body=st.binary(max_size=30),
)
def test_no_bytes_on_a_connection_stop_the_server(
    client: Client, line: bytes, headers: dict[str, str], body: bytes
) -> None:
    head = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", client.port), HANG) as caller:
        caller.sendall(line + b"\r\n" + head + b"\r\n" + body)
        caller.shutdown(socket.SHUT_WR)
        try:
            answer = caller.recv(1 << 16)
        except ConnectionResetError:
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 5"), answer
    assert client.get("/health")[1]["status"] == "ok"
