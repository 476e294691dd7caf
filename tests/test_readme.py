"""Every command of the README runs, its outputs have the shape it shows, and its tour of files is true."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# The quickstart trains for a minute; here it is the same run, of a few steps.
SHORT = {"gpt train --config configs/quickstart.yaml": "train.steps=4"}


def commands() -> list[str]:
    """The lines after `$ ` in the console blocks, in their order."""
    blocks = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with what a clone has."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    return tmp_path


def test_every_command_runs_in_the_order_of_the_page(gpt, place):
    ours = [command for command in commands() if command.startswith("gpt ")]
    assert len(ours) >= 10
    for command in ours:
        outcome = gpt(*shlex.split(command)[1:], *filter(None, [SHORT.get(command)]))
        assert outcome.rc == 0, f"{command}\n{outcome.stderr}"
        shown = re.search(rf"\$ {re.escape(command)}\n(.*?)(?:\n\$|\n```)", README, flags=re.DOTALL)
        if shown and "sample" not in command:  # the names in the first column are those that the page shows
            assert first_words(outcome.stdout)[:5] == first_words(shown[1])[:5], command


def first_words(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def test_every_other_command_is_a_target_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    others = {command for command in commands() if not command.startswith("gpt ")}
    others |= set(re.findall(r"`(make [a-z-]+)`", README))
    for command in others:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, flags=re.MULTILINE), command


def test_every_path_of_the_page_is_there():
    table = README[README.index("## The files") :]
    for path in re.findall(r"`((?:gpt_cli|configs|data|docs|tests|bench|cli|training|model)/[\w./]*)`", table):
        assert (ROOT / path).exists() or (ROOT / "gpt_cli" / path).exists(), path
    for room in (path for path in (ROOT / "gpt_cli").iterdir() if path.is_dir() and path.name != "__pycache__"):
        assert f"`gpt_cli/{room.name}/`" in README, room
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).exists(), link


def test_every_shipped_config_has_its_line():
    for config in (ROOT / "configs").glob("*.yaml"):
        assert f"`{config.name}`" in README, config.name


@pytest.mark.slow
def test_make_train_in_a_fresh_clone_trains_samples_and_then_says_that_it_is_done(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    for expected in ("step 600/600", "all 600 steps are done"):
        done = subprocess.run(["make", "train"], cwd=clone, capture_output=True, text=True, timeout=1200, check=False)
        assert done.returncode == 0, done.stderr
        assert expected in done.stderr
        assert done.stdout.count("The ") >= 1
