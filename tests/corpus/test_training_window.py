"""`gpt data inspect --window` shows exactly what training asks: the inputs and targets of its own windows."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.config import Config
from gpt_cli.corpus import blocks
from gpt_cli.corpus.store import TokenStore
from gpt_cli.report.window_view import TrainingWindow, render_window
from gpt_cli.shuffle import training_offset, windows_per_epoch
from gpt_cli.tokenizer import ByteTokenizer
from gpt_cli.training.batches import Batches
from gpt_cli.training.device_tokens import DeviceTokens
from tests.support.command import Run, in_process

TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n" * 40 + "Größe 😀\n" * 40


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`gpt` in this process, in a directory that holds text.txt and its tokens in store."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    assert main(["tokenize", "text.txt", "--kind", "bpe", "--vocab-size", "300", "--out", "store"]) == 0
    capsys.readouterr()

    return in_process(capsys)


def test_every_context_grows_by_a_token_and_its_target_is_the_next(run: Run) -> None:
    Path("abc.txt").write_text("abcdefghijklmnopqrstuvwxyz" * 20)
    answer = run("data", "inspect", "abc.txt", "--window", "0")
    assert answer.rc == 0, answer.stderr
    lines = answer.stdout.splitlines()[-8:]
    letters = lines[-1].split("'")[1] + lines[-1].split("'")[3]
    assert letters in "abcdefghijklmnopqrstuvwxyz" * 2
    assert lines == [f"when the context is '{letters[:n]}' the target is '{letters[n]}'" for n in range(1, 9)]


def test_what_is_shown_of_a_store_is_what_it_holds(run: Run) -> None:
    output = json.loads(run("data", "inspect", "store", "--window", "7", "--json").stdout)
    store = TokenStore.open(Path("store"))
    tokens, at = store.tokens("train"), output["at"]
    assert output["tokens"] == len(tokens)
    assert output["ids"] == tokens[at : at + 9].tolist()
    assert "".join(output["pieces"]) == store.tokenizer.decode(tokens[at : at + 9])
    assert len(output["pairs"]) == 8
    for length, pair in enumerate(output["pairs"], start=1):
        assert pair["context"] == tokens[at : at + length].tolist()
        assert pair["target"] == tokens[at + length]
        assert pair["context_text"] == store.tokenizer.decode(tokens[at : at + length])


def test_window_n_is_the_nth_that_training_takes(run: Run) -> None:
    tokens = DeviceTokens(TokenStore.open(Path("store")).tokens("train"), torch.device("cpu"))
    inputs, targets = Batches(tokens, 8, 4, 4, Config().seed).at(0)[0]
    for index in range(4):
        output = json.loads(run("data", "inspect", "store", "--window", str(index), "--json").stdout)
        assert output["ids"][:-1] == inputs[index].tolist()
        assert output["ids"][1:] == targets[index].tolist()


@given(st.integers(2, 400), st.integers(1, 40), st.integers(0, 2**60))
def test_the_windows_of_an_epoch_cover_different_tokens_and_leave_room_for_the_target(
    tokens: int, context: int, seed: int
) -> None:
    assume(tokens > context)
    windows = windows_per_epoch(tokens, context)
    starts = sorted(training_offset(index, tokens, context, seed) for index in range(windows))
    assert all(later - earlier == context for earlier, later in pairwise(starts))
    assert starts[0] >= 0
    assert starts[-1] + context < tokens


def test_half_characters_and_control_characters_are_made_visible(run: Run) -> None:
    Path("odd.txt").write_text("a\x1b[31m\nü😀" * 20)
    assert main(["tokenize", "odd.txt", "--kind", "byte", "--out", "bytes"]) == 0
    shown = "".join(run("data", "inspect", "bytes", "--window", str(index)).stdout for index in range(13))
    assert "\x1b" not in shown
    assert "the target is '\\x1b'" in shown
    assert "the target is '\\xbc'" in shown  # the second byte of ü
    assert run("data", "inspect", "odd.txt", "--window", "0").stdout.count("when the context is") == 8


def test_a_long_context_is_shown_by_its_end() -> None:
    window = TrainingWindow(0, tuple(TEXT[:500].encode()))
    last = render_window(window, ByteTokenizer(), "tokens 0 to 499").splitlines()[-1]
    assert len(last) < 120
    assert last.startswith("when the context is '...")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.txt"], 2, "does not exist"),
        ([""], 2, "empty"),
        (["text.txt", "--window", "-1"], 2, "--window"),
        (["text.txt", "--val-fraction", "0.998"], 2, "too few"),
        (["store", "--val-fraction", "0.2"], 2, "--val-fraction is for texts"),
        (["store", "text.txt"], 2, "is a token store"),
    ],
)
def test_bad_input_is_one_error_line(run: Run, arguments: list[str], code: int, message: str) -> None:
    answer = run("data", "inspect", "--window", "0", *arguments)
    assert (answer.rc, answer.stdout) == (code, "")
    assert answer.stderr.startswith("error: ")
    assert message in answer.stderr


def test_a_window_of_a_long_text_is_that_of_its_store(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CACHE_BYTES", 0)
    assert main(["tokenize", "text.txt", "--out", "char-store", "--test-fraction", "0.2"]) == 0
    run()
    for index in ("0", "1"):
        options = ("--window", index, "--json")
        from_store = json.loads(run("data", "inspect", "char-store", *options).stdout)
        from_text = json.loads(run("data", "inspect", "text.txt", *options, "--test-fraction", "0.2").stdout)
        assert from_text.pop("corpus") != from_store.pop("corpus")
        assert from_text == from_store


def test_what_is_kept_for_the_test_is_never_shown(run: Run) -> None:
    Path("ends.txt").write_text("training" * 20 + "TEST" * 10)
    for index in range(20):
        output = json.loads(
            run("data", "inspect", "ends.txt", "--test-fraction", "0.2", "--window", str(index), "--json").stdout
        )
        assert set("".join(output["pieces"])) <= set("training")
