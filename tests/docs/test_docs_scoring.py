"""docs/scoring.md: its commands run, and print what has the shape of what it shows."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.tokenizer import CharTokenizer
from tests.support.command import ROOT, run_python

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "scoring.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an untrained run of the name on the page, and its files."""
    monkeypatch.chdir(tmp_path)
    tokenizer = CharTokenizer("\n" + "".join(map(chr, range(32, 127))))
    config = Config(model=ModelConfig(n_layer=1, n_head=2, n_embd=16, context_length=128))
    torch.manual_seed(0)
    run = tmp_path / "runs" / "quickstart"
    save(run, 600, GPT(config.model, tokenizer.vocab_size).state_dict(), {}, {}, config, tokenizer)
    (run / "run.json").write_text("{}")
    (run / "config.yaml").write_text("")
    (letter,) = (text for language, text in BLOCKS if language == "text")
    (tmp_path / "letter.txt").write_text(letter)
    (tmp_path / "docs.txt").write_text("A sentence of the text.\n" * 40)
    return tmp_path


def shape(text: str) -> list[str]:
    """A text without its figures: an untrained model has others."""
    text = re.sub(r"-?\d+(\.\d+)?(e-\d+)?", "0", text)
    return [re.sub(r"[ 0]+", " ", line).strip() for line in text.splitlines()]


@pytest.mark.usefixtures("work_dir")
def test_every_command_prints_what_has_the_shape_of_what_stands_there(capsys: pytest.CaptureFixture[str]) -> None:
    consoles = [re.split(r"^\$ gpt (.*)\n", t, flags=re.MULTILINE)[1:] for kind, t in BLOCKS if kind == "console"]
    commands = [pair for console in consoles for pair in zip(console[::2], console[1::2], strict=True)]
    assert len(commands) == 6
    for command, expected in commands:
        code = main(shlex.split(command))
        out, err = capsys.readouterr()
        assert code == 0, err
        if "--json" in command:  # also --jsonl
            printed, documented = json.loads(out), json.loads(expected)
            assert list(printed) == list(documented)
            for figures in (printed, documented):
                if "bits_per_byte" in figures:
                    assert figures["bits"] == pytest.approx(figures["bytes"] * figures["bits_per_byte"], abs=1e-3)
        elif "--tokens" in command:
            assert out.splitlines()[0] == expected.splitlines()[0]
        else:
            assert shape(out) == shape(expected)


def test_the_program_of_the_page_writes_the_validation_split_of_the_run(work_dir: Path) -> None:
    (program,) = (text for language, text in BLOCKS if language == "python")
    text = "".join(f"{number:,} lines of a text\n" for number in range(200))
    (work_dir / "book.txt").write_text(text)
    (work_dir / "runs/quickstart/config.yaml").write_text("data: {source: book.txt, val_fraction: 0.25}")
    run_python(program, work_dir)
    assert (work_dir / "docs.txt").read_text() == text[len(text) * 3 // 4 :]
