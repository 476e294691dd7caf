"""docs/howto/classify.md: its Python and its fine-tuning run after its commands (which test_docs_guides.py runs)."""

import re
import shlex
from pathlib import Path

import pytest

from gpt_cli.cli.main import main
from tests.support.command import ROOT

PAGE = (ROOT / "docs" / "howto" / "classify.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.docs


def test_the_python_of_the_page_classifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"text": "{word} {i}", "label": "{word}"}}' for i in range(8) for word in ("for", "import")]
    Path("lines.jsonl").write_text("\n".join(lines) + "\n")
    small = ("model.n_layer=1", "model.n_embd=32", "train.steps=1", "train.batch_size=2", "data.source=lines.jsonl")
    assert main(["train", "--config", str(ROOT / "configs" / "classify.yaml"), *small]) == 0
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    capsys.readouterr()
    exec(compile(program, "classify.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] in ("for", "import") for line in printed] == [True, True]


def test_its_command_trains_a_run_of_tokens_further_to_classify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("It was the best of times, it was the worst of times.\n" * 60)
    rows = [f"{word} {i},{word}\n" for i in range(8) for word in ("bad", "good")]
    Path("reviews.csv").write_text("text,label\n" + "".join(rows))
    Path("my.yaml").write_text("seed: 3\n")
    small = ("model.n_layer=1", "model.n_embd=32", "model.context_length=16", "train.steps=1", "train.batch_size=2")
    base = ("data.source=book.txt", "tokenizer.kind=bpe", "tokenizer.vocab_size=260", "run_dir=runs/bpe")
    assert main(["train", "--config", "my.yaml", *base, *small]) == 0
    (command,) = re.findall(r"^gpt (train .*init_from=runs/bpe .*)$", PAGE, flags=re.MULTILINE)
    assert main(shlex.split(command)) == 0
    assert main(["classify", "--run", "runs/reviews", "good 3"]) == 0
