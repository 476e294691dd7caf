"""`gpt data peek` shows exactly what training asks: the inputs and targets of its own windows."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.config import Config
from gpt_cli.corpus import lazy_corpus
from gpt_cli.corpus.peek_window import cut_window, first_start
from gpt_cli.corpus.store import TokenStore
from gpt_cli.errors import RequestError
from gpt_cli.shuffle import training_offset, windows_per_epoch
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
    answer = run("data", "peek", "text.txt", "--at", "0", "--context", "5")
    assert answer.rc == 0, answer.stderr
    assert answer.stdout.splitlines()[-5:] == [
        "when the context is 'F' the target is 'i'",
        "when the context is 'Fi' the target is 'r'",
        "when the context is 'Fir' the target is 's'",
        "when the context is 'Firs' the target is 't'",
        "when the context is 'First' the target is ' '",
    ]


def test_what_is_shown_of_a_store_is_what_it_holds(run: Run) -> None:
    output = json.loads(run("data", "peek", "store", "--at", "7", "--context", "6", "--json").stdout)
    store = TokenStore.open(Path("store"))
    tokens = store.tokens("train")
    assert output["tokens"] == len(tokens)
    assert output["ids"] == tokens[7:14].tolist()
    assert "".join(output["pieces"]) == store.tokenizer.decode(tokens[7:14])
    for length, pair in enumerate(output["pairs"], start=1):
        assert pair["context"] == tokens[7 : 7 + length].tolist()
        assert pair["target"] == tokens[7 + length]
        assert pair["context_text"] == store.tokenizer.decode(tokens[7 : 7 + length])


def test_without_a_place_it_is_the_first_window_that_training_takes(run: Run) -> None:
    output = json.loads(run("data", "peek", "store", "--context", "16", "--json").stdout)
    tokens = DeviceTokens(TokenStore.open(Path("store")).tokens("train"), torch.device("cpu"))
    inputs, targets = Batches(tokens, 16, 4, 4, Config().seed).at(0)[0]
    assert output["ids"][:-1] == inputs[0].tolist()
    assert output["ids"][1:] == targets[0].tolist()


@given(st.integers(2, 400), st.integers(1, 40), st.integers(0, 2**60))
def test_the_windows_of_an_epoch_cover_different_tokens_and_leave_room_for_the_target(
    tokens: int, context: int, seed: int
) -> None:
    if tokens <= context:
        assert first_start(tokens, context, seed) == 0
        return
    windows = windows_per_epoch(tokens, context)
    starts = sorted(training_offset(index, tokens, context, seed) for index in range(windows))
    assert all(later - earlier == context for earlier, later in pairwise(starts))
    assert starts[0] >= 0
    assert starts[-1] + context < tokens
    assert first_start(tokens, context, seed) in starts


def test_half_characters_and_control_characters_are_made_visible(run: Run) -> None:
    Path("odd.txt").write_text("a\x1b[31m\nü😀" * 20)
    assert main(["tokenize", "odd.txt", "--kind", "byte", "--out", "bytes"]) == 0
    answer = run("data", "peek", "bytes", "--at", "0", "--context", "12")
    assert "\x1b" not in answer.stdout
    assert "the target is '\\x1b'" in answer.stdout
    assert "the target is '\\xbc'" in answer.stdout  # the second byte of ü
    assert run("data", "peek", "odd.txt", "--at", "0").stdout.count("when the context is") == 8


def test_the_validation_split_and_a_ready_tokenizer_can_be_asked_for(run: Run) -> None:
    output = json.loads(
        run("data", "peek", "text.txt", "--split", "val", "--tokenizer", "store/tokenizer.json", "--json").stdout
    )
    assert output["at"] == 0
    assert output["ids"] == TokenStore.open(Path("store")).tokens("val")[:9].tolist()


def test_a_long_context_is_shown_by_its_end(run: Run) -> None:
    last = run("data", "peek", "text.txt", "--at", "0", "--context", "500").stdout.splitlines()[-1]
    assert len(last) < 120
    assert last.startswith("when the context is '...")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.txt"], 2, "does not exist"),
        ([""], 2, "empty"),
        (["text.txt", "--at", "100000"], 2, "no window of 8 tokens"),
        (["text.txt", "--at", "-1"], 2, "--at"),
        (["text.txt", "--context", "0"], 2, "--context"),
        (["text.txt", "--context", "100000"], 2, "too few"),
        (["store", "--tokenizer", "store/tokenizer.json"], 2, "a tokenizer of its own"),
        (["text.txt", "--tokenizer", "nowhere.json"], 2, "does not exist"),
        (["text.txt", "--tokenizer", "text.txt"], 1, "no tokenizer"),
        (["text.txt", "--split", "test"], 2, "--split"),
    ],
)
def test_bad_input_is_one_error_line(run: Run, arguments: list[str], code: int, message: str) -> None:
    answer = run("data", "peek", *arguments)
    assert (answer.rc, answer.stdout) == (code, "")
    assert answer.stderr.startswith("error: ")
    assert message in answer.stderr


def test_the_hint_names_the_last_place_where_a_window_fits(run: Run) -> None:
    read, tokens = (store := TokenStore.open(Path("store"))).read, store.stats["train"].tokens
    with pytest.raises(RequestError, match="no window") as refused:
        cut_window(read, "train", tokens, tokens, 8)
    last = int(str(refused.value.hint).rpartition(" ")[2])
    assert cut_window(read, "train", tokens, last, 8).ids[-1] == read("train", tokens - 1, tokens)[0]
    with pytest.raises(RequestError):
        cut_window(read, "train", tokens, last + 1, 8)


def test_a_window_of_a_long_text_is_that_of_its_store(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_corpus, "HEAD", 50)
    assert main(["tokenize", "text.txt", "--out", "char-store", "--test-fraction", "0.2"]) == 0
    run()
    for split in ("train", "val"):
        options = ("--split", split, "--json")
        from_store = json.loads(run("data", "peek", "char-store", *options).stdout)
        from_text = json.loads(run("data", "peek", "text.txt", *options, "--test-fraction", "0.2").stdout)
        assert from_text.pop("source") != from_store.pop("source")
        assert from_text == from_store


def test_what_is_kept_for_the_test_is_never_shown(run: Run) -> None:
    answer = run("data", "peek", "text.txt", "--split", "test", "--test-fraction", "0.2")
    assert (answer.rc, answer.stdout) == (2, "")
    assert "'test' is not one of" in answer.stderr
