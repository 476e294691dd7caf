"""docs/howto/serve.md: what stands there is answered, and says what it is said to say."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import load, save
from gpt_cli.serve.chat_schemas import ChatRequest, ResponseRequest
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.request_schemas import CompletionRequest
from gpt_cli.tokenizer import ByteTokenizer
from tests.support.command import ROOT, run_python
from tests.support.live_server import SHAPE, Client, make_run, serving

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "howto" / "serve.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    run = make_run(tmp_path_factory.mktemp("runs") / "quickstart")
    config = load(run / "checkpoints" / "step-00000000").config
    torch.manual_seed(1)
    save(run, 600, GPT(SHAPE, 256).state_dict(), {}, {}, config, ByteTokenizer())
    with serving(run) as client:
        yield client


def test_what_curl_asks_for_on_the_page_is_answered(client: Client) -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("curl ")]
    assert len(lines) >= 9
    for line in lines:
        _, address, *data = shlex.split(line)
        body = data[1].encode() if data else None
        status, _, answer = client.send("POST" if data else "GET", address.removeprefix(ADDRESS), body)
        assert status == 200, answer
        assert answer
        if data and "regex" in data[1]:
            assert re.match(json.loads(data[1])["regex"], json.loads(answer)["choices"][0]["text"])


def test_the_python_of_the_page_runs(client: Client, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    program = "".join(re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE))
    assert len(run_python(program.replace(ADDRESS, client.url), tmp_path)) > 40


def test_the_parameters_of_the_page_are_those_of_the_schema() -> None:
    rows = re.findall(r"^\| (?:of OpenAI's|of vLLM's|ours) \| (.*) \|$", PAGE, flags=re.MULTILINE)
    documented = {name for row in rows for part in re.findall(r"`([^`]+)`", row) for name in part.split()}
    schemas = (CompletionRequest, ChatRequest, ResponseRequest)
    assert documented == {name for schema in schemas for name in schema.model_fields}


def test_the_bounds_of_the_page_are_the_defaults() -> None:
    limits = Limits()
    for text in (f"{limits.seats} texts at once", f"{limits.queue} texts", f"{limits.seconds:.0f} s, the queue"):
        assert f"| {text}" in PAGE
    assert f"{limits.max_tokens:,}; {limits.prompt_tokens:,}; {limits.n}; 1 MiB" in PAGE
    assert limits.body == 1 << 20
    assert f"{limits.prompt_step} tokens a step" in PAGE
