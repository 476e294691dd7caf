"""docs/howto/structured_output.md: its programs and requests run, its tables are what the tests of schemas cover."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sampling.test_json_schema import REFUSED
from tests.support.command import ROOT, run_python
from tests.support.json_schemas import FORMATS, SCHEMAS
from tests.support.live_server import LETTERS, Client, make_run, serving

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "howto" / "structured_output.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
TYPES = ["int", "str", "list"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_run(tmp_path_factory.mktemp("runs") / "quickstart")) as client:
        yield client


def row(name: str) -> set[str]:
    """The names in the second cell of a row."""
    (cell,) = re.findall(rf"^\| {name} \| (.*) \|$", PAGE, re.MULTILINE)
    return set(re.findall(r"`([^`]+)`", cell))


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return value.keys() | {key for inner in value.values() for key in keys_of(inner)}
    return {key for inner in value for key in keys_of(inner)} if isinstance(value, list) else set()


def written(answer: dict[str, Any]) -> str:
    """The text of an answer of any path, which is whole."""
    if "output" in answer:
        assert answer["status"] == "completed"
        return str(answer["output"][0]["content"][0]["text"])
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def test_the_files_on_the_page_are_those_of_the_examples() -> None:
    shown = dict(BLOCKS)
    assert shown["json"] == (ROOT / "examples" / "function.json").read_text()
    assert shown["lark"] == (ROOT / "examples" / "call.lark").read_text()


def test_what_curl_asks_for_on_the_page_is_answered_as_asked(client: Client) -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("curl ")]
    assert len(lines) == 5
    for line in lines:
        _, address, _, body = shlex.split(line)
        status, _, content = client.send("POST", address.removeprefix("http://127.0.0.1:8000"), body.encode())
        assert status == 200, content
        text = written(json.loads(content))
        if "guided_grammar" in body:
            assert re.fullmatch(r"[a-z]{1,9}\(\)", text)
        else:
            assert (text if "guided_choice" in body else json.loads(text)) in TYPES


def test_a_text_that_the_vocabulary_cannot_continue_is_answered_as_a_cut_one(tmp_path: Path) -> None:
    with serving(make_run(tmp_path / "letters", LETTERS)) as client:
        body = {"prompt": "a", "max_tokens": 100, "guided_grammar": 'start: "ab" "}"'}
        _, _, content = client.send("POST", "/v1/completions", json.dumps(body).encode())
        (choice,) = json.loads(content)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")


def test_the_python_of_the_page_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "quickstart")
    for line in run_python(dict(BLOCKS)["python"], tmp_path).splitlines():
        assert set(json.loads(line.replace("'", '"'))) <= set(TYPES)


def test_every_keyword_that_the_page_calls_covered_is_in_a_tested_schema() -> None:
    tested = keys_of(list(SCHEMAS.values()))
    for group in ("any type", "objects", "arrays", "strings", "numbers"):
        assert row(group) <= tested
    assert row("formats") == set(FORMATS)


def test_every_keyword_that_the_page_calls_refused_is_refused_by_a_test() -> None:
    assert row("keywords") == {name for name, schema in REFUSED if name in keys_of(schema)} - {
        "oneOf",
        "additionalItems",
    }
