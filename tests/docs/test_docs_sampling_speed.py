"""docs/sampling_speed.md: its commands run, and its files are there."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.tokenizer import ByteTokenizer
from tests.support.command import ROOT

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "sampling_speed.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ gpt (.*)$", PAGE, flags=re.MULTILINE)


def test_the_commands_of_the_page_write_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(model=ModelConfig(n_layer=1, n_embd=32, context_length=16))
    torch.manual_seed(0)
    checkpoint = save(tmp_path, 1, GPT(config.model, 256).state_dict(), {}, {}, config, ByteTokenizer())
    (tmp_path / "runs").mkdir()
    checkpoint.rename(tmp_path / "runs" / "step-00000001")
    assert len(COMMANDS) == 2
    for command in COMMANDS:
        arguments = [word.replace("runs/shakespeare_cpu", "runs/step-00000001") for word in shlex.split(command)]
        assert main(arguments) == 0
        assert capsys.readouterr().out.startswith("ROMEO:")


def test_the_files_of_the_page_are_there() -> None:
    for path in re.findall(r"`((?:gpt_cli|tests|bench)/[\w./]+)`", PAGE):
        assert (ROOT / path).exists(), path
    assert "python -m bench.decoding" in PAGE
