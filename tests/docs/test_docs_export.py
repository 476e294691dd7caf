"""docs/export.md: its commands run in their order, print what stands there, and its Python writes what `gpt` writes."""

import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.command import ROOT, Run, in_process, run_python

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(console|python|text)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
# Runs that the page takes for granted, made with few steps.
RUNS = {
    "runs/quickstart": (),
    "runs/capped": ("model.logit_softcap=15.0",),
}
GREEDY = ("--temperature", "0", "--max-new-tokens", "50")
FEW = ("train.steps=2", "data.source=book.txt", "model.n_layer=1", "model.n_embd=32", "model.context_length=64")
BOOK = "The mouse lived in a shoe, and the shoe was The King's.\n" * 100


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console block with what stands below it."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`gpt` in this process, in a folder with the configs, a book and the runs."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "configs", "configs")
    Path("book.txt").write_text(BOOK)

    gpt = in_process(capsys)
    for name, overrides in RUNS.items():
        outcome = gpt("train", "--config", "configs/quickstart.yaml", f"run_dir={name}", *FEW, *overrides)
        assert outcome.rc == 0, outcome.stderr
    return gpt


def test_every_command_does_what_the_page_says_and_the_python_writes_the_same_text(run: Run) -> None:
    for language, text in BLOCKS:
        if language == "python" and find_spec("transformers"):
            written = run_python(text, Path(), TRANSFORMERS_VERBOSITY="error")
            code, ours, _ = run("sample", "--run", "runs/quickstart", "--prompt", "The ", *GREEDY)
            assert code == 0
            assert written.splitlines() == ours.splitlines()[: len(written.splitlines())]
        for command, expected in commands(text) if language == "console" else ():
            code, out, err = run(*shlex.split(command)[1:])
            printed = out + err
            assert code == (2 if expected.startswith("error: ") else 0), f"{command}\n{printed}"
            if expected:
                assert blurred(printed) == blurred(expected), command


def blurred(text: str) -> list[str]:
    """The lines, without the figures that depend on how long was trained."""
    return [re.sub(r"\d+(\.\d+)?", "0", line) for line in text.splitlines()]
