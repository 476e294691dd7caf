"""`gpt sample --novelty`: what the fast comparison finds is what a plain search for every substring finds."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.config import Config, DataConfig, ModelConfig, TokenizerConfig
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.evaluation import novelty
from gpt_cli.evaluation.novelty import decode_all, measure_novelty
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.tokenizer import ByteTokenizer, CharTokenizer, train_tokenizer
from tests.support.command import Outcome, in_process


def plain(sample: str, training: str) -> dict[str, Any]:
    """All that is told, by searching for every substring."""
    spans = [sample[i:j] for i in range(len(sample) + 1) for j in range(i, len(sample) + 1)]
    actual: dict[str, Any] = {"longest": max(len(span) for span in spans if span in training)}
    for n in (8, 20):
        grams = [sample[i : i + n] for i in range(len(sample) - n + 1)]
        shared = sum(gram in training for gram in grams)
        actual[f"copied_{n}"] = round(shared / len(grams), 6) if grams else None
    return actual


BPE = train_tokenizer(["ab ab é€ " * 20], TokenizerConfig(kind="bpe", vocab_size=262))
letters = st.text(alphabet="aé\n\U0001f600", max_size=60)


@given(chunks=st.lists(st.text(alphabet="ab", max_size=30), max_size=4), sample=st.text(alphabet="ab", max_size=30))
def test_what_is_read_in_parts_is_met_in_none_across_them(chunks: list[str], sample: str) -> None:
    reported = measure_novelty(sample, b"\xff".join(chunk.encode() for chunk in chunks))
    reported.pop("span")
    assert reported == plain(sample, "|".join(chunks))


@given(data=st.data(), block=st.sampled_from([1, 5, 16, 1 << 20]), training=letters)
@settings(max_examples=300)
def test_what_is_told_is_what_a_search_for_every_substring_finds(
    data: st.DataObject, block: int, training: str
) -> None:
    samples = data.draw(st.lists(letters, max_size=3))
    if training:  # so that long copies occur, too
        start = data.draw(st.integers(0, len(training) - 1))
        samples.append("a" + training[start : start + 40] + "\né")
    original_block, novelty._CHUNK = novelty._CHUNK, block
    try:
        actual = [measure_novelty(sample, training.encode()) for sample in samples]
    finally:
        novelty._CHUNK = original_block
    for sample, reported in zip(samples, actual, strict=True):
        span = reported.pop("span")
        assert reported == plain(sample, training)
        assert len(span) == reported["longest"]
        assert span in training
        assert sample.index(span) == min(
            start for start in range(len(sample) + 1) if sample[start : start + len(span)] in training
        )


def test_a_hash_that_lets_everything_through_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, training = "the cat sat on a mat", b"a cat sat on the mat; " * 9
    expected = measure_novelty(sample, training)
    hashed = novelty._hashes
    monkeypatch.setattr(novelty, "_hashes", lambda text, width: hashed(text, width) * 0)
    assert measure_novelty(sample, training) == expected
    assert expected["span"] == " cat sat on "


@given(text=st.text(alphabet="ab é€\U0001f600", max_size=40))
def test_the_text_of_tokens_is_theirs_and_special_ones_part_it(text: str) -> None:
    for tokenizer in (ByteTokenizer(), BPE):
        ids = tokenizer.encode(text)
        assert decode_all(tokenizer, ids) == text.encode()
    separated = np.array([*BPE.encode(text), BPE.eot_id, *BPE.encode("a")])
    assert decode_all(BPE, separated) == text.encode() + b"\xffa"
    unknown = CharTokenizer("ab", has_unknown=True)
    assert decode_all(unknown, unknown.encode(text)) == b"".join(c.encode() if c in "ab" else b"\xff" for c in text)


BOOK = "Once upon a time there was a mouse, and it lived in a shoe.\n" * 30


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An untrained model that its own config says was trained on book.txt."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(BOOK)
    model = ModelConfig(n_layer=1, n_head=2, n_embd=16, context_length=16)
    config = Config(model=model, data=DataConfig(source="book.txt"))
    corpus = prepare_corpus(config.data, config.tokenizer, note=print)
    torch.manual_seed(0)
    weights = GPT(config.model, corpus.tokenizer.vocab_size).state_dict()
    return save(tmp_path / "run", 1, weights, {}, {"text_sha256": corpus.fingerprint}, config, corpus.tokenizer)


def call(capsys: pytest.CaptureFixture[str], run: Path, *arguments: str) -> Outcome:
    gpt = in_process(capsys, "sample", "--seed", "1", "--max-new-tokens", "24", "--novelty")
    return gpt("--run", run, *arguments)


def test_json_has_what_each_sample_copies_and_a_recitation_is_told(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = BOOK[: int(len(BOOK) * 0.9)]
    capsys.readouterr()
    code, out, _ = call(capsys, run, "--jsonl", "-n", "2", "--prompt", "a")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, len(lines)) == (0, 2)
    for line in lines:
        reported = line["novelty"]
        assert reported.pop("span") in training
        assert reported == plain(line["text"], training)
    code, out, _ = call(capsys, run, "--json", "--prompt", "a", "--choices", "there was a mouse")
    (sample,) = json.loads(out)["samples"]
    assert sample["novelty"] == {"longest": 17, "span": "there was a mouse", "copied_8": 1.0, "copied_20": None}
    code, out, err = call(capsys, run, "--prompt", "a")
    assert code == 0
    assert "copied: " in err
    assert "the first 24 characters of the validation text, for comparison:\n" in err
    assert err.splitlines()[-2] == "copied: 100.0% of the 8-grams, 100.0% of the 20-grams"
    assert "copied" not in out


def test_without_its_text_there_is_one_error_and_nothing_is_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "book.txt").write_text(BOOK + "!")
    code, out, err = call(capsys, run)
    assert (code, out) == (2, "")
    assert "error: the text book.txt has changed" in err
    assert "hint: " not in err
    os.rename(tmp_path / "book.txt", tmp_path / "books.txt")  # which is not proposed: the run is of its own text
    code, out, err = call(capsys, run)
    assert (code, out) == (2, "")
    assert "error: book.txt does not exist\n" in err
    assert "hint: " not in err
    config = Config(model=ModelConfig(n_layer=1, n_head=2, n_embd=16, context_length=16), data=DataConfig(source="-"))
    weights = GPT(config.model, 256).state_dict()
    path = save(tmp_path / "piped", 1, weights, {}, {"text_sha256": "0"}, config, ByteTokenizer())
    code, out, err = call(capsys, path)
    assert (code, out) == (2, "")
    assert "trained on standard input" in err
    config = config.model_copy(update={"data": DataConfig()})
    path = save(tmp_path / "imported", 1, weights, {}, {}, config, ByteTokenizer())
    code, out, err = call(capsys, path)
    assert (code, out) == (2, "")
    assert "was imported" in err
