"""docs/report.md: its commands run, in their order, and print what has the shape that stands there."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from gpt_cli.cli.main import main
from tests.support.command import ROOT

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SHORT = ["train.steps=3", "eval.every=2", "model.n_embd=32", "train.batch_size=4", "sample.max_new_tokens=8"]


def commands() -> list[tuple[list[str], str]]:
    """Each command, as arguments of `gpt`, and what stands below it."""
    parts = [part for block in BLOCKS for part in re.split(r"^\$ gpt (.*)\n", block, flags=re.MULTILINE)[1:]]
    return [(shlex.split(line), printed) for line, printed in zip(parts[::2], parts[1::2], strict=True)]


def test_every_command_of_the_page_runs_and_prints_what_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    assert [arguments[0] for arguments, _ in commands()] == [
        "train", "train", "report", "attention", "attention", "diff", "plot",
    ]  # fmt: skip
    for arguments, expected in commands():
        short = SHORT if arguments[0] == "train" else []
        assert main([*arguments, *short]) == 0, arguments
        printed = capsys.readouterr().out
        assert bool(printed) == bool(expected)
        if expected:
            assert len(expected.splitlines()[0].split()) == len(printed.splitlines()[0].split())
            assert max(map(len, expected.splitlines())) <= 80
    for name in ("report.html", "attention.html", "bpb.pdf"):
        assert (tmp_path / name).stat().st_size > 10_000


def test_the_pictures_are_there_and_small() -> None:
    for name in re.findall(r"\]\((\w+\.png)\)", PAGE):
        assert (ROOT / "docs" / name).stat().st_size < 150_000
    assert PAGE.count(".png)") == 2
