"""docs/session.md: its commands run in the order of the page, and print what has the shape of what it shows."""

import io
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from tests.support.command import ROOT

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "session.md").read_text(encoding="utf-8")
CONSOLES = re.findall(r"^```console\n\$ gpt ([^\n]*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an untrained run of the name on the page, of the same text."""
    monkeypatch.chdir(tmp_path)
    config = Config(model=ModelConfig(n_layer=1, n_head=2, n_embd=16, context_length=128))
    corpus = prepare_corpus(config.data, config.tokenizer, note=print)
    torch.manual_seed(0)
    weights = GPT(config.model, corpus.tokenizer.vocab_size).state_dict()
    run = tmp_path / "runs" / "quickstart"
    save(run, 600, weights, {}, {"text_sha256": corpus.fingerprint}, config, corpus.tokenizer)
    (run / "run.json").write_text("{}")
    (run / "config.yaml").write_text("")
    return tmp_path


def messages(text: str) -> list[str]:
    """What `gpt` itself says in a text: neither figures nor what a model wrote."""
    ours = [line for line in text.splitlines() if re.match(r"runs/|---|copied: |longest: |the first |\(|line  ", line)]
    return [re.sub(r"'.*'|\d+", "", line) for line in ours]


def test_the_session_can_be_had_again(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert [command.split()[0] for command, _ in CONSOLES] == ["sample", "chat", "score", "score"]
    assert "gpt train --config configs/quickstart.yaml" in (ROOT / "README.md").read_text(encoding="utf-8")
    for command, expected in CONSOLES:
        typed = re.findall(r"^> (.*)$", expected, re.MULTILINE)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(typed).encode())))
        code = main(shlex.split(command))
        out, err = capsys.readouterr()
        assert code == 0, err
        assert sorted(messages(out + err)) == sorted(messages(expected)), command
        if command.startswith("score"):
            assert re.search(r"^[\d,]+ tokens, loss \d\.\d{4}, \d\.\d{4} bits per byte$", err, re.MULTILINE)
    assert "The class statement " in (work_dir / "talk.txt").read_text(encoding="utf-8")
