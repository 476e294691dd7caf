"""docs/sampling.md: its commands run, its errors are word for word, and its program prints what it says."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig, load_config
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.sampling import SamplingParams
from gpt_cli.tokenizer import CharTokenizer
from tests.support.command import ROOT, run_python

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    """Each command with what the page shows below it."""
    consoles = [re.split(r"^\$ gpt (.*)\n", text, flags=re.MULTILINE)[1:] for kind, text in BLOCKS if kind == "console"]
    return [pair for console in consoles for pair in zip(console[::2], console[1::2], strict=True)]


def the(kind: str) -> str:
    (text,) = (text for language, text in BLOCKS if language == kind)
    return str(text)


@pytest.fixture
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an untrained run of the name on the page, and the questions."""
    monkeypatch.chdir(tmp_path)
    tokenizer = CharTokenizer("\n" + "".join(map(chr, range(32, 127))))
    config = Config(model=ModelConfig(n_layer=1, n_head=2, n_embd=16, context_length=32))
    torch.manual_seed(0)
    weights = GPT(config.model, tokenizer.vocab_size).state_dict()
    run = tmp_path / "runs" / "quickstart"
    save(run, 600, weights, {}, {}, config, tokenizer)
    (run / "run.json").write_text("{}")
    (run / "config.yaml").write_text("")
    (tmp_path / "questions.jsonl").write_text(the("json"))
    return tmp_path


def test_every_command_does_what_stands_there(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(commands()) == 8
    for command, expected in commands():
        arguments = shlex.split(command)
        code = main(arguments)
        out, err = capsys.readouterr()
        if expected.startswith("error: "):
            assert (code, out, err) == (2, "", expected)
            continue
        assert code == 0, err
        if "--jsonl" in command:
            printed, documented = ([json.loads(line) for line in text.splitlines()] for text in (out, expected))
            assert [list(line) for line in printed] == [list(line) for line in documented]
            assert [line["prompt"] for line in printed] == [line["prompt"] for line in documented]
            continue
        prompt = arguments[arguments.index("--prompt") + 1]
        assert [line for line in out.splitlines() if line.startswith("---")] == [
            line for line in expected.splitlines() if line.startswith("---")
        ]
        assert out.count(prompt) >= expected.count(prompt) >= 1
        if "--choices" in command:
            choices = arguments[arguments.index("--choices") + 1].split(",")
            for text in (out, expected):
                assert text.removeprefix(prompt).removesuffix("\n") in choices
        if "--regex" in command:
            for text in (out, expected):
                assert re.fullmatch(arguments[arguments.index("--regex") + 1], text.removeprefix(prompt).strip())


def test_the_program_runs_and_prints_what_it_says(work_dir: Path) -> None:
    *_, answer, first, second = run_python(the("python"), work_dir).splitlines()
    error, reason, total = answer.rsplit(" ", 2)
    assert error.endswith(("TypeError", "KeyError"))
    assert reason == "match"
    assert float(total) < 0
    assert first.startswith("['")
    assert second.startswith("['")


def test_the_defaults_on_the_page_are_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(the("yaml"))
    assert load_config(tmp_path / "config.yaml").sample.stop == ["\n"]


def test_every_setting_has_its_place_on_the_page() -> None:
    for field in fields(SamplingParams):
        assert f"`{field.name}`" in PAGE or f"{field.name}=" in PAGE or f"--{field.name}" in PAGE, field.name
