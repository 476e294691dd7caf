"""The page of `gpt serve`: whole in one file, and what one clicks, types, branches, stops and loses in it."""

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import load, save
from gpt_cli.run.log import RunLog
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import EngineOptions
from gpt_cli.serve.request_schemas import CompletionRequest
from tests.support.browser import Page, browsing, find_chromium
from tests.support.live_server import LETTERS, SHAPE, Client, make_run, serving

pytestmark = pytest.mark.system

EVIL = "<img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, temperature in (("first", 1.0), ("second", 0.5)):
        run = make_run(folder / name, LETTERS, temperature=temperature)
        config = load(run / "checkpoints" / "step-00000000").config
        torch.manual_seed(5)
        save(run, 5, GPT(SHAPE, LETTERS.vocab_size).state_dict(), {}, {}, config, LETTERS)
        with RunLog(run) as log:
            for step in range(1, 6):
                log.metrics(step, time=float(step), loss=3.0 / step, tokens=100.0 * step)
            log.metrics(5, time=6.0, val_loss=0.9, tokens=500.0)
            log.sample(5, prompt="a", text=EVIL)
    return folder


@pytest.fixture(scope="module")
def client(runs: Path) -> Iterator[Client]:
    with serving(runs, limits=Limits(max_tokens=10**9)) as client:
        yield client


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if find_chromium() is None:
        pytest.skip("there is no Chromium here")
    with browsing(tmp_path_factory.mktemp("browser")) as page:
        yield page
        assert page.problems == []


def test_the_page_is_one_file_whose_policy_lets_nothing_else_in(client: Client) -> None:
    status, headers, body = client.send("GET", "/")
    text = body.decode()
    assert status == 200
    policy = headers["content-security-policy"]
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    addresses = set(re.findall(r"https?://[^\s\"'`$]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not addresses
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(| on[a-z]+=\"", text)


def test_runs_are_told_with_their_curves_and_what_differs(client: Client) -> None:
    listing = client.get("/runs")[1]
    assert [run["name"] for run in listing["runs"]] == ["first", "second"]
    assert listing["differing"] == ["sample.temperature"]
    assert listing["flags"] == {}
    assert EngineOptions(engine="torch", weights="bf16").flags() == {"engine": "torch", "dtype": "bf16"}
    assert [Path(run["path"]).name for run in listing["runs"]] == ["first", "second"]
    assert [run["config"]["sample.temperature"] for run in listing["runs"]] == ["1.0", "0.5"]
    run = client.get("/runs/first")[1]
    assert run["steps"] == [0, 5]
    assert [row["loss"] for row in run["metrics"]][:5] == [3.0, 1.5, 1.0, 0.75, 0.6]
    assert client.get("/runs/..%2ffirst")[0] == client.get("/runs/nothing")[0] == 404


def test_a_damaged_line_of_a_log_is_noted_once_and_the_others_are_drawn(runs: Path, client: Client) -> None:
    for name, damaged in (("metrics", b"{}"), ("samples", b'{"step": 1}\n\0')):
        with (runs / "second" / f"{name}.jsonl").open("ab") as file:
            file.write(damaged + b"\n")
    for _ in range(2):
        run = client.get("/runs/second")[1]
        assert [row["loss"] for row in run["metrics"]][:5] == [3.0, 1.5, 1.0, 0.75, 0.6]
        assert run["samples"] == [
            {"step": 5, "prompt": "a", "text": EVIL},
            {"step": 1, "prompt": "", "text": ""},
        ]
    places = [runs / "second" / "metrics.jsonl:7", runs / "second" / "samples.jsonl:3"]
    assert [note for note in client.notes if "damaged" in note] == [
        f"{place} is damaged and skipped" for place in places
    ]


def test_a_head_divides_its_attention_among_what_it_sees(client: Client) -> None:
    status, attention = client.ask("/attention", model="first", text="hello", layer=1, head=0)
    assert (status, attention["layers"], attention["heads"], attention["tokens"]) == (200, 2, 2, list("hello"))
    assert [len(row) for row in attention["weights"]] == [1, 2, 3, 4, 5]
    assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in attention["weights"])
    assert client.ask("/attention", text="hello", layer=2)[1]["error"]["param"] == "layer"
    assert client.ask("/attention", model="first", text="hello")[1]["weights"] != attention["weights"]  # of layer 0


def test_attention_is_of_the_end_of_a_text_that_the_model_does_not_see_whole(client: Client) -> None:
    status, attention = client.ask("/attention", model="first", text="a" * 30 + "hello")
    assert (status, attention["text_tokens"], len(attention["tokens"])) == (200, 35, SHAPE.context_length)
    assert attention["tokens"][-5:] == list("hello")


def start(page: Page, client: Client, width: int = 1280, *, dark: bool = False) -> None:
    page.open(client.url + "/", width, dark=dark)
    page.run("document.querySelector('#max_tokens').value = 30; document.querySelector('#prompt').value = 'ab'")
    page.run("document.querySelector('#model').value = 'first'; document.querySelector('#model').onchange()")


def wait_written(page: Page) -> None:
    page.wait("document.querySelectorAll('.tok').length && document.querySelector('#cancel').disabled")


def written(page: Page, nth: int = 1) -> str:
    tokens = f"[...document.querySelectorAll('.text:nth-child({nth}) .tok')].map(e => e.textContent).join('')"
    return str(page.run(tokens)).replace("\u21b5\n", "\n")


@pytest.mark.parametrize("width", [390, 820, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_what_is_written_is_what_the_api_writes_and_fits_the_window(
    page: Page, client: Client, width: int, dark: bool
) -> None:
    start(page, client, width, dark=dark)
    page.run("document.querySelector('#n').value = 2")
    page.click("#go")
    wait_written(page)
    params = {"model": "first", "prompt": "ab", "seed": 1, "max_tokens": 30, "temperature": 0.8, "n": 2}
    answer = client.ask("/v1/completions", **params)[1]
    assert [written(page, 1), written(page, 2)] == [choice["text"] for choice in answer["choices"]]
    for tab in ("read", "look", "watch", "write"):
        page.click(f"#tab-{tab}")
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        assert page.run(f"!document.querySelector('#{tab}').hidden")


def test_another_token_is_taken_and_one_can_walk_back(page: Page, client: Client) -> None:
    start(page, client)
    page.click("#go")
    wait_written(page)
    before = written(page)
    page.click(".text .tok:nth-child(6)")
    page.wait("!document.querySelector('#odds').hidden")
    assert page.run("document.querySelectorAll('#odds button').length") == 10
    alternative = page.run("document.querySelector('#odds button:not(.taken) code').textContent")
    page.click("#odds button:not(.taken)")
    page.wait("document.querySelectorAll('#tree li').length == 2 && document.querySelector('#cancel').disabled")
    branch = written(page)
    n_fixed = page.run("document.querySelectorAll('.tok.fixed').length")
    assert branch[: n_fixed - 1] == before[: n_fixed - 1]
    assert branch[n_fixed - 1] == alternative.replace("\u21b5\n", "\n")
    assert len(branch) == n_fixed + 30
    page.click("#tree li button")
    assert written(page) == before


def test_it_is_used_without_a_mouse(page: Page, client: Client) -> None:
    start(page, client)
    page.run("document.querySelector('#prompt').select()")
    page.type("xy")
    page.key("Enter", modifiers=2)
    wait_written(page)
    assert written(page) == client.text(model="first", prompt="xy", seed=1, max_tokens=30, temperature=0.8)
    page.run("document.querySelector('.tok').focus()")
    page.key("ArrowRight")
    page.key("Enter")
    assert page.run("document.activeElement === document.querySelectorAll('.tok')[1]")
    assert not page.run("document.querySelector('#odds').hidden")
    page.run("document.querySelector('#tab-write').focus()")
    page.key("ArrowRight")
    assert page.run("!document.querySelector('#read').hidden && document.activeElement.id === 'tab-read'")


def test_tab_comes_to_every_control_of_every_part_and_shows_where_it_is(page: Page, client: Client) -> None:
    start(page, client)
    page.click("#go")
    wait_written(page)
    for tab in ("write", "read", "look", "watch"):
        page.run(f"document.querySelector('#tab-{tab}').click(); document.querySelector('h1').tabIndex = -1")
        page.run(
            "document.querySelector('h1').focus(); window.missing = new Set([...document.querySelectorAll('button,"
            " select, input, textarea, summary, [tabindex]')].filter(e =>"
            " e.checkVisibility() && !e.disabled && e.tabIndex >= 0))"
        )
        for _ in range(page.run("missing.size")):
            page.key("Tab")
            page.run("missing.delete(document.activeElement)")
            assert page.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
        assert page.run("[...missing].map(e => e.outerHTML.slice(0, 200))") == [], tab


def test_every_setting_of_the_api_is_set_by_keys_and_told_for_elsewhere(
    page: Page, client: Client, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"regex": "[a-f]+ [g-z]{3}", "repetition_penalty": 1.3, "no_repeat_ngram": 3}
    settings: dict[str, Any] = {**own, "logit_bias": {"9": -5.5}}
    penalties = {"presence_penalty": 0.5, "frequency_penalty": -0.2}
    start(page, client)
    page.run("document.querySelector('#more summary').focus()")
    page.key("Enter")
    assert page.run("document.querySelector('#more').open")
    for name, value in {**settings, **penalties, "logit_bias": "9=-5.5"}.items():
        page.run(f"document.querySelector('#{name}').focus()")
        if page.run("document.activeElement.type") == "range":
            step, current = (float(page.run(f"document.activeElement.{of}")) for of in ("step", "value"))
            for _ in range(abs(round((float(str(value)) - current) / step))):
                page.key("ArrowRight" if float(str(value)) > current else "ArrowLeft")
        else:
            page.type(str(value))
    page.key("Enter", modifiers=2)
    wait_written(page)
    params = {"model": "first", "prompt": "ab", "seed": 1, "max_tokens": 30, "temperature": 0.8}
    assert written(page) == client.text(**params, **settings, **penalties)
    body = json.loads(shlex.split(str(page.run("document.querySelector('#as-curl').textContent")))[-1])
    assert client.text(**body) == written(page)
    as_python = str(page.run("document.querySelector('#as-python').textContent"))
    assert "presence_penalty=0.5, frequency_penalty=-0.2" in as_python
    assert '"regex":"[a-f]+ [g-z]{3}"' in as_python.partition("extra_body=")[2]
    command = str(page.run("document.querySelector('#as-gpt').textContent"))
    assert command.endswith("  # without presence_penalty and frequency_penalty, which only the server has")
    _, verb, path, *flags = shlex.split(command, comments=True)
    assert path == str(runs / "first")
    capsys.readouterr()
    assert main([verb, path, *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"][0]["text"] == client.text(**params, **settings)
    page.run("document.querySelector('#regex').value = ''; document.querySelector('#choices').focus()")
    page.type("yes,no")
    page.key("Enter", modifiers=2)
    wait_written(page)
    assert written(page) in ("yes", "no")


def test_every_setting_of_the_api_is_on_the_page(page: Page, client: Client) -> None:
    start(page, client)
    ids = set(page.run("[...document.querySelectorAll('#writeform [id]')].map(e => e.id)"))
    elsewhere = {"model", "stream", "stream_options", "user", "echo", "logprobs"}  # chosen above, or by the page itself
    assert set(CompletionRequest.model_fields) - elsewhere <= ids


def test_stopping_frees_the_seat_and_keeps_what_is_there(page: Page, client: Client) -> None:
    start(page, client)
    page.run("const tokens = document.querySelector('#max_tokens'); tokens.max = ''; tokens.value = 1000000")
    page.click("#go")
    page.wait("document.querySelectorAll('.tok').length > 3")
    page.key("Escape")
    page.wait("document.querySelector('#cancel').disabled")
    page.wait("document.querySelector('#status').textContent === 'stopped'")
    assert len(written(page)) > 3


def test_a_lost_connection_is_told_and_the_next_try_writes(page: Page, client: Client) -> None:
    start(page, client)
    page.offline(True)
    page.click("#go")
    page.wait("document.querySelector('#status.bad')")
    assert page.run("document.querySelector('.gone').textContent") == "the server does not answer"
    page.offline(False)
    page.click("#go")
    wait_written(page)
    assert not page.run("document.querySelector('#status.bad')")


def test_a_text_is_read_by_two_checkpoints_side_by_side(page: Page, client: Client) -> None:
    start(page, client)
    page.click("#tab-read")
    page.run(
        "document.querySelector('#text').value = 'ab\\ncd ef'; document.querySelector('#beside').value = 'first@0'"
    )
    page.click("#readform .do")
    page.wait("document.querySelectorAll('#readings article').length == 2")
    readings = page.run("[...document.querySelectorAll('#readings .facts-line')].map(e => e.textContent)")
    for model, line in zip(("first", "first@0"), readings, strict=True):
        score = client.ask("/score", model=model, text="ab\ncd ef")[1]
        assert line == f"{score['bpb']:.3f} bits per byte, 7 tokens"
    assert page.run("document.querySelectorAll('.readline').length") == 4


def test_training_is_watched_and_how_it_learned_is_written(page: Page, client: Client) -> None:
    start(page, client)
    page.click("#tab-watch")
    page.wait("document.querySelectorAll('#samples li').length")
    assert page.run("document.querySelectorAll('#curves polyline').length") == 2
    assert page.run("document.querySelector('#samples .sample').textContent") == "a" + EVIL.replace("\u202e", "\\x202e")
    assert "step 5 of" in page.run("document.querySelector('#progress').textContent")
    page.click("#learned")
    page.wait("!document.querySelector('#learned').disabled")
    page.run("document.querySelector('#when').value = 0; document.querySelector('#when').oninput?.()")
    page.run("document.querySelector('#when').dispatchEvent(new Event('input'))")
    text = client.text(model="first@0", prompt="ab", seed=1, max_tokens=30, temperature=0.8)
    assert page.run("document.querySelector('#then').textContent").replace("\u21b5\n", "\n") == "ab" + text


def test_every_control_has_a_name_and_every_id_is_one(page: Page, client: Client) -> None:
    start(page, client)
    page.click("#go")
    wait_written(page)
    page.click(".tok")
    nameless = page.run(
        "[...document.querySelectorAll('input, select, textarea, button, [role=tabpanel], svg, canvas')].filter(e =>"
        " !(e.labels?.length || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') ||"
        " e.textContent.trim())).map(e => e.outerHTML)"
    )
    assert nameless == []
    assert page.run("document.documentElement.lang") == "en"
    ids = page.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_fault_in_any_part(page: Page, client: Client, width: int, dark: bool) -> None:
    axe = Path(pytest.importorskip("axe_core_python").__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    start(page, client, width, dark=dark)
    page.run(f"{axe}; 1")
    page.click("#go")
    wait_written(page)
    page.click(".tok")
    page.click("#odds button:not(.taken)")
    page.wait("document.querySelectorAll('#tree li').length == 2 && document.querySelector('#cancel').disabled")
    page.run("document.querySelectorAll('details').forEach(e => e.open = true); document.querySelector('.tok').click()")
    page.run("for (const id of ['text', 'seen']) document.querySelector(`#${id}`).value = 'ab cd'")
    for tab, begin, selector in (
        ("write", None, ".tok"),
        ("read", "#readform .do", "#readings .tok"),
        ("look", "#lookform .do", "canvas"),
        ("watch", None, "#progress p"),
    ):
        page.click(f"#tab-{tab}")
        if begin is not None:
            page.click(begin)
        page.wait(f"document.querySelector('{selector}')")
        faults = page.run("axe.run().then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html)]))")
        assert faults == [], tab
