"""docs/tokenizers.md says what the commands that stand in it print."""

import re
import shlex
from pathlib import Path

import pytest
from tokenizers import ByteLevelBPETokenizer

from gpt_cli.cli.main import main

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "tokenizers.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[tuple[list[str], str]]:
    """The commands of a block, as arguments of `gpt`, and what stands below each."""
    parts = re.split(r"^\$ gpt (.*)\n", block, flags=re.MULTILINE)[1:]
    return [(shlex.split(line), printed) for line, printed in zip(parts[::2], parts[1::2], strict=True)]


EVERY = [pair for block in BLOCKS for pair in commands(block)]
OF_SHAKESPEARE = [pair for pair in EVERY if any("shakespeare" in argument for argument in pair[0])]
OF_PYTHON = [pair for pair in EVERY if "builtin:python-docs" in pair[0] and not any("gpt2" in a for a in pair[0])]


def test_the_page_has_the_commands_that_this_file_runs() -> None:
    assert len(BLOCKS) == 9
    assert (len(EVERY), len(OF_SHAKESPEARE), len(OF_PYTHON)) == (10, 5, 3)


def test_the_figures_for_tiny_shakespeare_are_what_is_printed(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    gpt2 = [str(shared_data / "gpt2" / name) for name in ("encoder.json", "vocab.bpe")]
    ByteLevelBPETokenizer(*gpt2).save("gpt2.json")
    for arguments, printed in OF_SHAKESPEARE:
        text = str(shared_data / "shakespeare.txt")
        code = main([text if argument == "corpus:tiny-shakespeare" else argument for argument in arguments])
        out = capsys.readouterr().out
        assert code == 0
        if printed:
            assert out.splitlines() == printed.splitlines()
    assert Path("tokenizers_compare.png").stat().st_size < 150_000


@pytest.mark.parametrize(
    ("arguments", "printed"), OF_PYTHON, ids=lambda value: "" if isinstance(value, str) else value[0]
)
def test_the_commands_for_the_built_in_corpus_do_what_stands_there(
    arguments: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures are of one edition of the documentation; other Pythons have others."""
    code = main(arguments)
    out, err = capsys.readouterr()
    refused = printed.startswith("error: ")
    assert (code, out == "") == (2, True) if refused else (0, False)
    shown = (err if refused else out).splitlines()
    first = re.split(r"  +|: ", shown[0])[0]
    assert first == re.split(r"  +|: ", printed.splitlines()[0])[0]


def test_the_picture_is_there_and_small() -> None:
    assert "](tokenizers_compare.png)" in PAGE
    assert (DOCS / "tokenizers_compare.png").stat().st_size < 150_000
