"""docs/recipes.md: its commands run."""

import re
import shlex

import pytest

from gpt_cli.cli.main import main
from tests.support.command import ROOT

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
FEW = ("train.steps=2", "model.n_layer=1", "model.n_embd=32", "model.context_length=32", "train.batch_size=2")


def test_every_command_of_the_page_runs(monkeypatch, tmp_path, capsys):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ gpt (.*)$", PAGE, flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command)
        assert main([*words, *(FEW if words[0] == "train" else ())]) == 0, command
        capsys.readouterr()
