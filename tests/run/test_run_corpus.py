"""The text of a run, in the tokens that the run was trained on."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt_cli.cli.main import main
from gpt_cli.corpus.blocks import Split
from gpt_cli.corpus.tokenize_pipeline import TokenizePipeline

TEXT = "".join(f"{n} bottles of beer on the wall, take one down, pass it around\n" for n in range(400))
MODEL = ["model.n_layer=1", "model.n_head=1", "model.n_embd=8", "model.context_length=8", "train.batch_size=1"]
TOKENIZER = ["tokenizer.kind=bpe", "tokenizer.vocab_size=270", "tokenizer.train_bytes=2000"]
KEYS = [*MODEL, *TOKENIZER, "sample.every=null", "runtime.threads=1"]


@pytest.fixture
def learns_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As after an update of `gpt` that samples texts in another way, with an empty cache."""
    monkeypatch.setenv("GPT_CACHE", str(tmp_path / "another cache"))

    def other_text(self: TokenizePipeline, split: Split | None) -> Iterator[str]:
        yield "a cat and a dog and a cat and a mouse and a cow " * 20

    monkeypatch.setattr(TokenizePipeline, "_training_text", other_text)


def test_a_run_keeps_its_vocabulary_where_another_would_be_learned_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPT_CACHE", str(tmp_path / "cache"))
    Path("text.txt").write_text(TEXT)
    assert main(["train", "text.txt", *KEYS, "train.steps=2", "run_dir=run"]) == 0
    capsys.readouterr()
    assert main(["eval", "run", "--json"]) == 0
    loss = json.loads(capsys.readouterr().out)["loss"]
    request.getfixturevalue("learns_otherwise")
    assert main(["eval", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == loss
    assert main(["train", "run", "train.steps=3"]) == 0
    assert main(["doctor", "run"]) == 0
    assert main(["train", "text.txt", *KEYS, "train.steps=2", "run_dir=another"]) == 0
    assert Path("another/tokenizer.json").read_bytes() != Path("run/tokenizer.json").read_bytes()


def test_a_changed_validation_text_is_named_beside_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    Path("val.txt").write_text(TEXT[:900])
    keys = ["data.val_source=val.txt", "train.steps=1", "run_dir=run"]
    assert main(["train", "text.txt", *MODEL, *keys, "sample.every=null"]) == 0
    Path("val.txt").write_text(TEXT[:800])
    capsys.readouterr()
    assert main(["eval", "run"]) == 2
    assert "the text text.txt or val.txt has changed" in capsys.readouterr().err
