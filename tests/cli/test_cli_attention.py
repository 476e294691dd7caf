"""`gpt attention`: the page and the terminal show the weights that the model has, and no text is ever markup."""

import base64
import io
import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gpt_cli.cli.main import main
from gpt_cli.evaluation.attention_capture import capture_attention
from gpt_cli.report.heatmap import RAMP, ascii_rows, png, shade
from gpt_cli.run.load_model import load_model
from tests.support.browser import browsing, find_chromium
from tests.support.html_page import require_harmless

BOOK = "Once upon a time there was a mouse, </script><script>alert('x')</script> & it lived in a shoe.\n" * 60
PROMPT = "a mouse </script><script>alert('x')</script> & a mouse"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two layers of four heads, which share two key heads."""
    directory = tmp_path_factory.mktemp("trained")
    (directory / "book.txt").write_text(BOOK)
    (directory / "small.yaml").write_text("run_dir: runs/small\ndata: {source: book.txt}\n")
    shape = ["model.n_layer=2", "model.n_head=4", "model.n_kv_head=2", "model.n_embd=16", "model.context_length=64"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setenv("GPT_CACHE", str(directory / "cache"))
        assert main(["train", "--config", "small.yaml", *shape, "train.steps=3", "train.batch_size=4"]) == 0
    return directory


@pytest.fixture
def work_dir(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "runs").symlink_to(trained / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights_of(work_dir: Path, text: str) -> dict[str, np.ndarray[Any, Any]]:
    """The model's own, by head."""
    import torch

    loaded = load_model(work_dir / "runs" / "small", torch.device("cpu"), print)
    layers = capture_attention(loaded.model, loaded.tokenizer.encode(text).tolist())
    return {f"{layer.layer}.{head}": w.numpy() for layer in layers for head, w in enumerate(layer.weights())}


def test_the_page_holds_every_weight_and_what_it_was_made_of_and_no_markup_of_the_text(work_dir: Path) -> None:
    assert main(["attention", "runs/small", "--prompt", PROMPT, "-o", "att.html"]) == 0
    html = (work_dir / "att.html").read_text()
    page = require_harmless(html)
    assert page.count("script") == 2
    assert page.count("button") == 8
    (data,) = (json.loads(text) for text in page.texts if text.startswith('{"'))
    assert "".join(data["pieces"]) == PROMPT
    n_token = len(PROMPT)

    def numbers(text: str) -> np.ndarray[Any, Any]:
        return np.frombuffer(base64.b64decode(text), dtype="<f4")

    expected = weights_of(work_dir, PROMPT)
    assert [head["name"] for head in data["heads"]] == list(expected)
    for head in data["heads"]:
        weights = np.zeros((n_token, n_token), dtype=np.float32)
        weights[np.tril_indices(n_token)] = numbers(head["weights"])
        assert np.array_equal(weights, expected[head["name"]])
        q, k = numbers(head["q"]).reshape(n_token, -1), numbers(head["k"]).reshape(n_token, -1)
        scores = np.where(np.tri(n_token, dtype=bool), q @ k.T / np.sqrt(data["width"]), -np.inf)
        exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
        assert exponents / exponents.sum(axis=1, keepdims=True) == pytest.approx(weights, abs=1e-6)


@pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium here")
def test_on_paper_what_is_folded_is_open_and_no_control_is_left(work_dir: Path) -> None:
    assert main(["attention", "runs/small", "--prompt", PROMPT, "-o", "att.html"]) == 0
    with browsing(work_dir / "browser") as page:
        page.open_on_paper(work_dir / "att.html")
        table, folded = "document.querySelector('details table')", "document.querySelector('details')"
        assert page.run(f"{table}.offsetHeight > 0 && {folded}.offsetHeight > {table}.offsetHeight")
        assert page.run("[...document.querySelectorAll('select')].every(one => one.offsetHeight === 0)")
        assert page.problems == []


def test_filters_choose_layers_and_heads(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["attention", "runs/small", "--prompt", "a mouse", "--layer", "1", "--head", "0", "--head", "3", "--json"])
        == 0
    )
    actual = json.loads(capsys.readouterr().out)
    assert [(head["layer"], head["head"]) for head in actual["heads"]] == [(1, 0), (1, 3)]
    assert actual["heads"][1]["weights"] == weights_of(work_dir, "a mouse")["1.3"].tolist()


def test_a_long_text_is_cut_to_its_end_and_that_is_said(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = BOOK[:300]
    for arguments, n_tokens, why in (([], 64, "--max-tokens"), (["--max-tokens", "9"], 9, "--max-tokens"),
                                 (["--max-tokens", "200"], 64, "the model's context")):  # fmt: skip
        assert main(["attention", "runs/small", "--prompt", text, "--json", *arguments]) == 0
        out, err = capsys.readouterr()
        assert "".join(json.loads(out)["pieces"]) == text[-n_tokens:]
        assert err == f"the text has 300 tokens; the last {n_tokens} are shown ({why})\n"


@pytest.mark.parametrize("arguments", [[], ["--layer", "1"], ["--layer", "0", "--head", "1"]])
def test_in_a_terminal_it_is_ascii_of_eighty_columns(
    work_dir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["attention", "runs/small", "--prompt", BOOK[:200], "--ascii", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 80
    assert not any(line.endswith(" ") for line in out.splitlines())
    assert ("'o'" in out) == (len(arguments) == 4)  # tokens stand beside a single head


def test_a_dash_is_standard_input(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a mouse")))
    assert main(["attention", "runs/small", "--prompt", "-", "--json"]) == 0
    assert "".join(json.loads(capsys.readouterr().out)["pieces"]) == "a mouse"


def test_the_run_decides_what_is_not_given(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attention", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tokens"]) == 1  # the start of a text
    assert main(["attention", "-o", "one.html"]) == 0
    require_harmless((work_dir / "one.html").read_text())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], "error: there is no run at nowhere"),
        (["--layer", "2"], "error: there is no layer 2: they are numbered from 0 to 1"),
        (["--head", "-1"], "error: there is no head -1: they are numbered from 0 to 3"),
        (["--prompt", "müse"], "error: the text has a character that the vocabulary lacks: 'ü'"),
        (["-o", "att.png"], "error: a page is written as .html, not as att.png"),
        (["--ascii", "--json"], "error: give --ascii or --json, not both"),
    ],
)
def test_a_wrong_request_is_refused_with_code_2(
    work_dir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    assert main(["attention", *arguments]) == 2
    assert capsys.readouterr().err.startswith(error)


def test_a_page_that_a_browser_would_choke_on_is_refused(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpt_cli.report.attention_page.MAX_BYTES", 1000)
    assert main(["attention", "--prompt", "a mouse"]) == 2
    assert "--max-tokens" in capsys.readouterr().err
    assert not (work_dir / "attention.html").exists()


def test_a_picture_has_a_field_for_each_weight_the_more_opaque_the_larger_it_is() -> None:
    weights = np.tril(np.random.default_rng(0).random((7, 7))).astype(np.float32)
    picture = Image.open(io.BytesIO(png(weights, (1, 2, 3))))
    assert picture.size == (7, 7)
    pixels = np.asarray(picture.convert("RGBA"))
    assert (pixels[..., :3] == [1, 2, 3]).all()
    assert np.array_equal(pixels[..., 3], np.rint(255 * np.sqrt(weights)).astype(np.uint8))


def test_the_picture_is_a_png_to_the_letter() -> None:
    data = png(np.eye(3, dtype=np.float32), (0, 0, 0))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    offset, kinds = 8, []
    while offset < len(data):
        (size,) = struct.unpack(">I", data[offset : offset + 4])
        kinds.append(data[offset + 4 : offset + 8])
        (crc,) = struct.unpack(">I", data[offset + 8 + size : offset + 12 + size])
        assert crc == zlib.crc32(data[offset + 4 : offset + 8 + size])
        offset += 12 + size
    assert kinds == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 20))
def test_a_small_map_shows_the_largest_weight_of_each_field_and_is_no_larger_than_asked(
    n_token: int, columns: int, rows: int
) -> None:
    weights = np.tril(np.random.default_rng(n_token).random((n_token, n_token))).astype(np.float32)
    lines = ascii_rows(weights, columns, rows)
    assert len(lines) == min(rows, n_token)
    assert {len(line) for line in lines} == {min(columns, n_token)}
    assert max(RAMP.index(c) for line in lines for c in line) == RAMP.index(shade(float(weights.max())))
    if columns >= n_token and rows >= n_token:
        assert lines == ["".join(shade(float(w)) for w in row) for row in weights]


def test_shades_are_tenths() -> None:
    assert [shade(w) for w in (0.0, 0.04, 0.06, 0.15, 0.25, 0.55, 0.95, 1.0)] == [*"  ..:+@@"]
