"""The tutorial, the how-tos, the explanation and the Python page: what stands there runs, and is quoted right."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from gpt_cli.cli.main import main
from tests.support.command import ROOT, parse_arguments, run_python

pytestmark = pytest.mark.docs

DOCS = ROOT / "docs"
PAGES = sorted(
    [
        DOCS / "tutorial.md",
        DOCS / "explanation.md",
        DOCS / "python.md",
        DOCS / "scaling.md",
        *(DOCS / "howto").glob("*.md"),
    ]
)
WRITTEN = sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "reference")  # that is test_reference.py's
FEW = ("model.n_layer=1", "model.n_embd=32", "model.context_length=32", "train.batch_size=2", "sample.every=null")
BOOK = "ROMEO: Once the mouse lived in a shoe, and the shoe was The King's.\n" * 200
# What measures for long on the page measures briefly here; what is tried out elsewhere is not tried again.
SHORTER = {
    "--seconds 3": "--seconds 0.1 train.batch_size=2 model.n_layer=1 model.n_embd=32",
    "--steps 60": "--steps 10 train.batch_size=2 model.n_layer=1 model.n_embd=32",
    " train.budget=1m": "",  # test_budget.py
    " model.mlp=swiglu,relu2 train.steps=200 --seeds 3": " train.steps=1 --seeds 1",
}
# Verbs whose rows are named alike, whatever was trained.
SAME_ROWS = ("eval", "data inspect builtin:python-docs --window", "diff")


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, what stands between the fences) of each block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[tuple[str, str]]:
    """Each command of a console block with what stands below it."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def shortened(command: str) -> list[str]:
    """The arguments of a `gpt` command, with which it takes no time."""
    for long, short in SHORTER.items():
        command = command.replace(long, short)
    steps = re.search(r"train\.steps=(\d+)", command)
    arguments = shlex.split(command)[1:]
    if arguments[0] in ("train", "sweep"):
        arguments += [*FEW, f"train.steps={int(steps[1]) // 100 + 1 if steps else 2}"]
    return arguments


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a clone has, two books, and the run that every page begins with."""
    directory = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "configs", directory / "configs")
    shutil.copytree(ROOT / "examples", directory / "examples")
    for name in ("book.txt", "more.txt"):
        (directory / name).write_text(BOOK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert main(shortened("gpt train --config configs/quickstart.yaml")) == 0
    return directory


@pytest.fixture
def work_dir(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_in_their_order_and_print_what_has_its_shape(
    page: Path, work_dir: Path, gpt_here: Callable[..., Any]
) -> None:
    actual = [pair for language, text in blocks(page) if language == "console" for pair in commands(text)]
    assert actual
    for command, expected in actual:
        if command.startswith("make "):
            assert re.search(rf"^{command.removeprefix('make ')}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        elif command.startswith("python "):
            assert_script_runs(command, work_dir)
        elif command.startswith("gpt "):
            outcome = gpt_here(*shortened(command))
            assert outcome.rc == 0, f"{command}\n{outcome.stderr}"
            if command.removeprefix("gpt ").startswith(SAME_ROWS):
                assert first_words(expected) <= first_words(outcome.stdout), command
            for word in ("training:", "text", "model", "device"):
                assert (f"  {word}" in expected) <= (f"  {word}" in outcome.stderr), command
        else:
            assert command == ". .venv/bin/activate"


def assert_script_runs(command: str, directory: Path) -> None:
    """One of examples/, in a process, as it stands on the page but for its number of steps."""
    _, script, *arguments = shlex.split(command)
    if script.endswith("train.py"):
        arguments.append("train.steps=2")
    source = (directory / script).read_text()
    printed = run_python(f"import sys\nsys.argv = {[script, *arguments]!r}\n{source}", directory)
    assert len(printed.splitlines()) >= 3


def first_words(text: str) -> set[str]:
    """What the lines begin with; pieces of text are as good as any other, and figures as any other."""
    words = {line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith(" ")}
    return {re.sub(r"\d+(\.\d+)?", "0", word) for word in words}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_every_command_that_is_only_shown_is_one_that_gpt_takes(page: Path) -> None:
    for language, text in blocks(page):
        for line in text.splitlines() if language == "text" else ():
            if line.startswith("gpt ") and "--install-completion" not in line:  # that one is tried in test_cli_main.py
                parse_arguments(shlex.split(line, comments=True)[1:])
    for line in re.findall(r"`gpt ([a-z][^`]*)`", page.read_text(encoding="utf-8")):
        words = re.sub(r"\b[A-Z]+\b", "x", line).split()
        if len(words) > 1:  # not `gpt sa` and the like
            try:
                parse_arguments(shlex.split(" ".join(words)))
            except typer.BadParameter:  # a verb may be named without what it needs
                pass
            except typer.TyperException as error:
                if "requires an argument" not in str(error):  # and so may an option
                    raise


def test_the_python_of_the_page_runs_from_top_to_bottom(work_dir: Path) -> None:
    programs = [text for language, text in blocks(DOCS / "python.md") if language == "python"]
    assert len(programs) == 6
    printed = run_python("\n".join(programs), work_dir)
    assert "length 20 -" in printed
    assert "Qwen3ForCausalLM" in printed
    assert printed.rstrip().endswith("not -1.0")
    assert (work_dir / "exports" / "python" / "config.json").exists()


def test_the_python_that_asks_llama_cpp_gets_an_answer(work_dir: Path, gpt_here: Callable[..., Any]) -> None:
    pytest.importorskip("gguf", reason="the extra [gguf] is not installed")
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    actual = blocks(DOCS / "howto" / "llama_cpp.md")
    export, (program,) = commands(actual[0][1])[0][0], [text for language, text in actual if language == "python"]
    assert gpt_here(*shortened(export)).rc == 0
    assert run_python(program, work_dir).startswith("The ")


def test_the_python_that_adds_an_adapter_writes_what_the_run_writes(
    work_dir: Path, gpt_here: Callable[..., Any]
) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    actual = blocks(DOCS / "howto" / "fine_tune.md")
    console = [command for language, text in actual if language == "console" for command, _ in commands(text)]
    (program,) = [text for language, text in actual if language == "python"]
    for command in console[: 1 + console.index("gpt export runs/lora --to peft exports/lora")]:
        assert gpt_here(*shortened(command)).rc == 0, command
    greedy = ("--prompt", "ROMEO:", "--temperature", "0", "--max-new-tokens", "20")
    expected = gpt_here("sample", "--run", "runs/lora", *greedy).stdout
    assert run_python(program, work_dir, TRANSFORMERS_VERBOSITY="error").split() == expected.split()


def test_every_excerpt_stands_in_the_source_as_it_is_quoted() -> None:
    page = (DOCS / "explanation.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^`(gpt_cli/[\w/]+\.py)`[^\n]*:\n\n```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(quoted) == page.count("```python") >= 15
    for path, excerpt in quoted:
        source = [line.strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]
        lines = [line.strip() for line in excerpt.splitlines()]
        assert any(source[at : at + len(lines)] == lines for at in range(len(source))), f"{path}\n{excerpt}"


def test_the_pictures_of_the_explanation_are_small_and_drawn_by_the_commands_above_them() -> None:
    page = (DOCS / "explanation.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^\$ gpt draw (\w+)", page, re.MULTILINE))
    linked = set(re.findall(r"\]\(pictures/(\w+)\.png\)", page))
    assert drawn == linked == {path.stem for path in (DOCS / "pictures").glob("*.png")}
    for path in (DOCS / "pictures").iterdir():
        assert path.stat().st_size < 150_000, path


def test_every_link_leads_somewhere_and_every_page_is_reached_from_the_front() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                target = (page.parent / link).resolve()
                assert target.exists(), f"{page}: {link}"
                if target.suffix == ".md" and target not in reached:
                    waiting.append(target)
    assert set(DOCS.rglob("*.md")) <= reached
