"""Every command of the README runs, its outputs have the shape it shows, and the map of the code is true."""

import io
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpt_cli.cli.main import app
from tests.support.command import ROOT, parse_arguments, run_python

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FEW = ("train.steps=2", "train.batch_size=2", "model.n_embd=32")
# Training takes a minute on the page; here it is the same, of a few steps. Likewise what measures.
SHORT = {
    "gpt train --config configs/quickstart.yaml": ("train.steps=4",),
    "gpt train book.txt": ("train.steps=4",),
    "gpt train runs/quickstart train.steps=800": ("train.steps=6",),
    "gpt train book.txt train.budget=10m run_dir=runs/budget": ("train.budget=3s", "model.n_layer=1", "model.n_embd=8"),
    "gpt train book.txt train.init_from=runs/quickstart lora.rank=8": ("train.steps=2",),
    "gpt train chats.jsonl": FEW,
    "gpt train reviews.csv task.kind=classes": FEW,
    "gpt tune configs/quickstart.yaml --steps 60 -o lr.png": ("--steps", "10", *FEW[1:]),
    "gpt sweep configs/quickstart.yaml optim.lr=0.01,0.02 --seeds 3": ("--seeds", "1", "--jobs", "1", *FEW),
    "gpt bench configs/quickstart.yaml --seconds 3": ("--seconds", "0.1", *FEW[1:]),
}
# Which file runs it: a test, with further options, or a page whose commands are tested.
ELSEWHERE = {
    "gpt selftest --quick": "tests/selftest/test_selftest.py",
    "gpt train --config configs/quickstart.yaml run_dir=runs/two train.micro_batch_size=1 --devices 2": (
        "docs/howto/devices.md"
    ),
}
SHOWN = {"gpt scale configs/quickstart.yaml --budget 2h", "gpt serve runs/quickstart"}  # their arguments are checked
BOOK = "Once upon a time there was a mouse, and it lived in a shoe.\n" * 100
CHAT = '{"messages": [{"role": "user", "content": "Hi %d"}, {"role": "assistant", "content": "Hello"}]}\n'
REVIEW = "a fine film %d,good\na dull film %d,bad\n"


@dataclass(frozen=True)
class Block:
    """What stands between two fences, or a row of the table of commands."""

    language: str
    text: str

    def commands(self) -> list[tuple[str, str]]:
        """Each command with the output that the page shows, in their order; a `text` block has commands alone."""
        if self.language == "row":
            return [(self.text, "")]
        if self.language == "text":
            return [(line, "") for line in self.text.splitlines() if line.startswith("gpt ")]
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)[1:] if self.language == "console" else []
        return list(zip(parts[::2], parts[1::2], strict=True))


PIECES = re.finditer(
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$|^\| [^|]+ \| `(?P<row>gpt [^`]+)` \|", README, re.DOTALL | re.MULTILINE
)
BLOCKS = [Block(piece["language"] or "row", piece["text"] or piece["row"]) for piece in PIECES]
COMMANDS = [command for block in BLOCKS for command, _ in block.commands()]


@pytest.fixture
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what a clone has, a book, chats, labelled texts, and nobody at the keyboard."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "book.txt").write_text(BOOK)
    (tmp_path / "chats.jsonl").write_text("".join(CHAT % number for number in range(40)))
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(REVIEW % (number, number) for number in range(40)))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    return tmp_path


def test_every_command_runs_in_the_order_of_the_page_and_so_does_the_python(gpt_here, work_dir):
    assert sum(command.startswith("gpt ") for command in COMMANDS) >= 36
    assert sum(block.language == "python" for block in BLOCKS) == 1
    assert SHOWN | {*SHORT} | {*ELSEWHERE} <= {*COMMANDS}
    for block in BLOCKS:
        if block.language == "python":
            assert len(run_python(block.text, work_dir)) >= 100
        for command, expected in block.commands():
            if not command.startswith("gpt "):
                continue
            if command in SHOWN:
                parse_arguments(shlex.split(command)[1:])
                continue
            if command in ELSEWHERE:
                words = ", ".join(f'"{word}"' for word in shlex.split(command)[1:])
                text = (ROOT / ELSEWHERE[command]).read_text(encoding="utf-8")
                assert f"gpt({words}" in text or f"\n$ {command}\n" in text
                continue
            outcome = gpt_here(*shlex.split(command)[1:], *SHORT.get(command, ()))
            assert outcome.rc == 0, f"{command}\n{outcome.stderr}"
            if expected and "sample" not in command:
                assert words_of(outcome.stdout) == words_of(expected), command


def words_of(text: str) -> list[list[str]]:
    """The words of each line without figures, and without pieces of text, which depend on the edition of Python."""
    figure = re.compile(r"\b[0-9a-f]{16,}\b|[\d.,:]*\d[\d.,:]*[kMG]?")
    lines = [figure.sub("N", line.partition("'")[0]).split() for line in text.splitlines()]
    return [line for line in lines if line]


def test_every_verb_has_a_command_on_the_page():
    import typer

    verbs = set(typer.main.get_command(app).commands)
    assert verbs == {command.split()[1] for command in COMMANDS if command.startswith("gpt ")}


def test_every_other_command_is_a_target_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    other_commands = {command for command in COMMANDS if not command.startswith("gpt ")}
    other_commands |= set(re.findall(r"`(make [a-z-]+)`", README))
    for command in other_commands:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, flags=re.MULTILINE), command


def test_every_path_of_the_page_is_there():
    for page in (README, CONTRIBUTING):
        for path in re.findall(r"`((?:gpt_cli|configs|data|docs|tests|bench|cli|training|model|cpu)/[\w./]*)`", page):
            assert (ROOT / path).exists() or (ROOT / "gpt_cli" / path).exists(), path
        for link in re.findall(r"\]\(([^)]+)\)", page):
            assert (ROOT / link.partition("#")[0]).exists(), link
    for package in (path for path in (ROOT / "gpt_cli").iterdir() if path.is_dir() and path.name != "__pycache__"):
        assert f"`gpt_cli/{package.name}/`" in CONTRIBUTING, package


def test_every_shipped_config_has_its_line():
    for config in (ROOT / "configs").glob("*.yaml"):
        assert f"| `{config.name}` |" in README, config.name


@pytest.mark.slow
def test_make_train_in_a_fresh_clone_trains_samples_and_then_says_that_it_is_done(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    for expected in ("step 600/600", "all 600 steps are done"):
        completed = subprocess.run(
            ["make", "train"], cwd=clone, capture_output=True, text=True, timeout=1200, check=False
        )
        assert completed.returncode == 0, completed.stderr
        assert expected in completed.stderr
        assert completed.stdout.count("The ") >= 1
