"""docs/tokenizers.md says what the commands that stand in it print."""

import re
import shlex
import shutil
from base64 import b64encode
from pathlib import Path

import pytest
from tokenizers import ByteLevelBPETokenizer, Regex
from tokenizers.pre_tokenizers import Split

from gpt_cli.cli.main import main
from gpt_cli.tokenizer import load_tokenizer
from gpt_cli.tokenizer.pretokenizer import RULES
from tests.support.command import ROOT

pytestmark = pytest.mark.docs

DOCS = ROOT / "docs"
PAGE = (DOCS / "tokenizers.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[tuple[list[str], str]]:
    """The commands of a block, as arguments of `gpt`, and what stands below each."""
    parts = re.split(r"^\$ gpt (.*)\n", block, flags=re.MULTILINE)[1:]
    return [(shlex.split(line), printed) for line, printed in zip(parts[::2], parts[1::2], strict=True)]


EVERY = [pair for block in BLOCKS for pair in commands(block)]
OF_SHAKESPEARE = [pair for pair in EVERY if any("shakespeare" in argument for argument in pair[0])]
OF_GPT2 = [pair for pair in EVERY if pair[0][:2] == ["tokenize", "--tokenizer"] and pair not in OF_SHAKESPEARE]
OF_PYTHON = [pair for pair in EVERY if "builtin:python-docs" in pair[0]]


def test_the_page_has_the_commands_that_this_file_runs() -> None:
    assert len(BLOCKS) == 8
    assert (len(EVERY), len(OF_SHAKESPEARE), len(OF_GPT2), len(OF_PYTHON)) == (13, 8, 3, 1)


def test_the_figures_for_tiny_shakespeare_are_what_is_printed(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bring_gpt2(shared_data)
    for arguments, printed in [*OF_SHAKESPEARE, *OF_GPT2]:
        text = str(shared_data / "shakespeare.txt")
        code = main([text if argument == "corpus:tiny-shakespeare" else argument for argument in arguments])
        out = capsys.readouterr().out
        assert code == 0
        if printed:
            assert out.splitlines() == printed.splitlines()


def bring_gpt2(shared_data: Path) -> None:
    """GPT-2's tokenizer here in each form in which it is published."""
    shutil.copytree(shared_data / "gpt2", "gpt2")
    ByteLevelBPETokenizer("gpt2/encoder.json", "gpt2/vocab.bpe").save("gpt2.json")
    tokenizer = load_tokenizer(Path("gpt2"))
    tokens = (tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size - 1))
    lines = [b"%s %d\n" % (b64encode(token), rank) for rank, token in enumerate(tokens)]
    Path("r50k_base.tiktoken").write_bytes(b"".join(lines))


def test_the_split_patterns_split_as_the_table_shows() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+·[^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for text, *split in rows:
        for pattern, pieces in zip(("gpt2", "gpt4", "o200k"), split, strict=True):
            actual = Split(Regex(RULES[pattern].published), "isolated").pre_tokenize_str(text)  # type: ignore[index]
            assert [piece for piece, _ in actual] == pieces.split("·"), (text, pattern)


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
    output = (err if refused else out).splitlines()
    first = re.split(r"  +|: ", output[0])[0]
    assert first == re.split(r"  +|: ", printed.splitlines()[0])[0]
