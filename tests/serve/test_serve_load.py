"""Two hundred clients at once for two minutes: each request is answered with its text, or with 429."""

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import subprocess_env
from tests.support.live_server import make_run
from tests.support.waiting import HANG, wait_until

pytestmark = pytest.mark.slow

CLIENTS = 200
SECONDS = 120.0
SEEDS = 12  # texts that are requested again and again


class Load:
    """Clients that ask until the time is up; `outcomes` of all requests."""

    def __init__(self, port: int, expected: dict[int, str]) -> None:
        self._port, self._expected = port, expected
        self._until = time.monotonic() + SECONDS
        self._lock = threading.Lock()
        self.outcomes = Counter[str]()

    def run(self) -> None:
        """All clients, to the end."""
        threads = [threading.Thread(target=self._client, args=[number]) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, number: int) -> None:
        turn = number
        while time.monotonic() < self._until:
            turn += 1
            try:
                outcome, wait = self._ask(turn)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                outcome, wait = f"lost: {error!r}", 0.0
            with self._lock:
                self.outcomes[outcome] += 1
            time.sleep(wait)

    def _ask(self, turn: int) -> tuple[str, float]:
        """Send one request. Returns its outcome, and the seconds to wait before the next."""
        seed, kind = turn % SEEDS, ("whole", "streamed", "given up")[turn % 3]
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=HANG)
        try:
            body = {"prompt": "the ", "seed": seed, "max_tokens": 60, "stream": kind != "whole"}
            connection.request("POST", "/v1/completions", json.dumps(body))
            answer = connection.getresponse()
            if answer.status == 429:
                answer.read()
                return "429", min(float(answer.headers["Retry-After"]), 1.0)
            if answer.status != 200:
                return f"status {answer.status}", 0.0
            if kind == "given up":
                answer.readline()
                return kind, 0.0
            text = text_of(answer.read(), streamed=kind == "streamed")
            return kind if text == self._expected[seed] else f"another text for seed {seed}", 0.0
        finally:
            connection.close()


def text_of(body: bytes, *, streamed: bool) -> str:
    """The text of an answer. Raises KeyError for an error, ValueError for a stream that has no end."""
    if not streamed:
        text: str = json.loads(body)["choices"][0]["text"]
        return text
    *events, end, tail = body.decode().split("\n\n")
    if (end, tail) != ("data: [DONE]", ""):
        raise ValueError("a stream without its end")
    choices: list[Any] = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    return "".join(choice["text"] for choice in choices)


def test_no_request_of_two_hundred_clients_is_lost_but_those_that_are_told_to_wait(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    command = [sys.executable, "-m", "gpt_cli", "serve", str(run), "--port", "0", "--seats", "32", "--queue", "64"]
    environment = subprocess_env()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        port = int(next(line for line in process.stderr if "http://" in line).rpartition(":")[2])

        def ask(path: str, **content: Any) -> Any:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
            connection.request("POST" if content else "GET", path, json.dumps(content) if content else None)
            answer = json.loads(connection.getresponse().read())
            connection.close()
            return answer

        def text(seed: int) -> str:
            params = {"prompt": "the ", "seed": seed, "max_tokens": 60}
            answer: str = ask("/v1/completions", **params)["choices"][0]["text"]
            return answer

        expected = {seed: text(seed) for seed in range(SEEDS)}
        load = Load(port, expected)
        load.run()
        print(dict(load.outcomes))
        assert set(load.outcomes) == {"whole", "streamed", "given up", "429"}, load.outcomes
        wait_until(lambda: ask("/health") == {"status": "ok", "writing": 0, "waiting": 0})
        assert {seed: text(seed) for seed in range(SEEDS)} == expected
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG) == -signal.SIGTERM
        assert "Traceback" not in process.stderr.read()
