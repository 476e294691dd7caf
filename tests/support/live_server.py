"""A server of small models in this process, on a port of its own, for the tests of `gpt serve`."""

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpt_cli.config import Config, DataConfig, ModelConfig, SampleConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.run.directory import create_imported_run
from gpt_cli.serve import server
from gpt_cli.serve.access_control import make_access_policy
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import EngineOptions
from gpt_cli.serve.scheduler import Scheduler
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from tests.support.waiting import HANG

SHAPE = ModelConfig(n_layer=2, n_embd=32, n_head=2, context_length=20, zero_init=False, init_std=0.2)
LETTERS = CharTokenizer("\n abcdefghijklmnopqrstuvwxyz:")


def make_run(
    path: Path,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    data: dict[str, Any] | None = None,
    shape: ModelConfig = SHAPE,
    **sample: Any,
) -> Path:
    """A run with an untrained model, as if it had learned from `data`."""
    vocabulary = tokenizer or ByteTokenizer()
    defaults = SampleConfig(**{"max_new_tokens": 24, "temperature": 1.0, **sample})
    config = Config(model=shape, sample=defaults, data=DataConfig(**data or {}), run_dir=str(path))
    torch.manual_seed(seed)
    create_imported_run(config, vocabulary, GPT(shape, vocabulary.vocab_size).state_dict(), "nowhere")
    return path


@dataclass
class Client:
    """A client of a server that runs in a thread."""

    port: int
    server: server.Server
    notes: list[str]
    """What the server told on its console."""

    @property
    def scheduler(self) -> Scheduler:
        """The server's scheduler."""
        app: Any = self.server.config.app
        actual: Scheduler = app.state.server.scheduler
        return actual

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is generated until the block is left."""
        holding, release = threading.Event(), threading.Event()
        future = self.scheduler.call(lambda: (holding.set(), release.wait()))
        assert holding.wait(HANG)
        try:
            yield
        finally:
            release.set()
            future.result(HANG)

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def ask(self, path: str, **content: Any) -> tuple[int, Any]:
        """Status and JSON of the answer to a JSON object, or to none."""
        status, _, body = self.send("POST", path, json.dumps(content).encode())
        return status, json.loads(body)

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON."""
        status, _, body = self.send("GET", path)
        return status, json.loads(body)

    def events(self, path: str, **content: Any) -> list[Any]:
        """The events of a stream, without its last, [DONE]."""
        status, _, body = self.send("POST", path, json.dumps({**content, "stream": True}).encode())
        assert status == 200, body
        lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    def text(self, **content: Any) -> str:
        """The one text of a completion."""
        status, answer = self.ask("/v1/completions", **content)
        assert status == 200, answer
        text: str = answer["choices"][0]["text"]
        return text


@contextmanager
def serving(
    *runs: Path,
    limits: Limits | None = None,
    options: EngineOptions | None = None,
    keys: Path | None = None,
    origins: tuple[str, ...] = (),
    follow: float | None = None,
    drain: float = 30.0,
) -> Iterator[Client]:
    """A server of these runs, until the block is left."""
    listener = server.bind("127.0.0.1", 0)
    ready: Future[server.Server] = Future()
    notes: list[str] = []

    def run() -> None:
        try:
            asyncio.run(
                server.serve(
                    list(runs),
                    listener,
                    make_access_policy("127.0.0.1", (), origins, keys),
                    limits or Limits(),
                    options or EngineOptions(),
                    notes.append,
                    follow=follow,
                    drain=drain,
                    started=ready.set_result,
                )
            )
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
                return
            raise

    thread = threading.Thread(target=run)
    with listener:
        thread.start()
        try:
            client = Client(listener.getsockname()[1], ready.result(HANG), notes)
            yield client
            client.server.should_exit = True
        finally:
            if ready.done() and ready.exception() is None:
                ready.result().should_exit = True
            thread.join(HANG)
    assert not thread.is_alive()
