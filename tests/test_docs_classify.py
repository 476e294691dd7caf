"""docs/howto/classify.md: its Python runs after its commands (which test_docs_people.py runs)."""

import re
from pathlib import Path

import pytest

from gpt_cli.cli.main import main

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "howto" / "classify.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.docs


def test_the_python_of_the_page_classifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"text": "{word} {i}", "label": "{word}"}}' for i in range(8) for word in ("for", "import")]
    Path("keywords.jsonl").write_text("\n".join(lines) + "\n")
    small = ("model.n_layer=1", "model.n_embd=32", "train.steps=1", "train.batch_size=2")
    assert main(["train", "--config", str(ROOT / "configs" / "classify.yaml"), *small]) == 0
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    capsys.readouterr()
    exec(compile(program, "classify.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] in ("for", "import") for line in printed] == [True, True]
