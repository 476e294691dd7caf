"""No verb prints a line wider than a terminal of 80 columns, nor loses a word where it folds one."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.terminal.escape import WIDTH, display_width, escape_control_chars, wrap_line
from gpt_cli.terminal.table import fold, render_pairs, render_table
from gpt_cli.training.console import Console
from tests.support.command import ROOT

SMALL = ("train.steps=3", "model.n_layer=1", "model.n_embd=32", "model.context_length=64", "train.batch_size=2")
# What each verb prints on a text whose every figure is large, in the order in which one needs the other.
COMMANDS = (
    ("data", "list"),
    ("data", "inspect", "builtin:python-docs"),
    ("data", "inspect", "builtin:python-docs", "--window", "0"),
    ("tokenize", "builtin:python-docs", "--kind", "bpe", "--vocab-size", "512", "--out", "tokens/docs"),
    ("data", "inspect", "tokens/docs", "--window", "0"),
    ("tokenize", "--tokenizer", "tokens/docs/tokenizer.json", "--text", "The class statement is a statement. " * 9),
    ("train", "--config", "configs/quickstart.yaml", "--dry-run"),
    ("train", "--config", "configs/quickstart.yaml", *SMALL),
    ("train", "--config", "configs/quickstart.yaml", "sample.every=null", "run_dir=runs/b", "optim.lr=0.01", *SMALL),
    ("eval", "--run", "runs/quickstart"),
    ("sample", "--run", "runs/quickstart", "--seed", "1", "--max-new-tokens", "60", "--novelty"),
    ("score", "configs/quickstart.yaml", "--run", "runs/quickstart"),
    ("score", "configs/quickstart.yaml", "--run", "runs/quickstart", "--worst", "3", "--tokens"),
    ("score", "configs/gpt2_tiny.yaml", "--run", "runs/quickstart", "--unknown", "skip"),
    ("score", "configs/gpt2_tiny.yaml", "--run", "runs/quickstart", "--unknown", "skip", "--worst", "3"),
    ("info", "runs/quickstart"),
    ("info", "configs/gpt2_124m.yaml", "data.source=builtin:python-docs"),
    ("doctor", "runs/quickstart"),
    ("diff", "runs/quickstart", "runs/b"),
    ("plot", "runs/quickstart", "runs/b"),
    ("report", "runs/quickstart", "--no-baselines"),
    ("attention", "runs/quickstart", "--ascii", "--prompt", "the name of the class is the name of the module"),
    ("bench", "configs/quickstart.yaml", "--seconds", "0.1", *SMALL),
    ("tune", "configs/quickstart.yaml", "--steps", "10", *SMALL),
    ("sweep", "configs/quickstart.yaml", *SMALL, "optim.lr=0.01,0.02", "--seeds", "1"),
    ("export", "runs/quickstart", "exports/quickstart"),
    ("import", "hf", "exports/quickstart", "runs/imported"),
    ("config", "show", "configs/quickstart.yaml"),
    ("config", "init", "-o", "-"),
    ("config", "init", "builtin:python-docs", "-o", "-"),
)


@pytest.mark.system
def test_every_verb_keeps_to_80_columns(gpt_here: Callable[..., Any], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    for arguments in COMMANDS:
        outcome = gpt_here(*arguments)
        assert outcome.rc == 0, (arguments, outcome.stderr)
        for line in (outcome.stdout + outcome.stderr).splitlines():
            assert len(line) <= 80, (arguments, line)


@pytest.mark.parametrize("columns", [40, 45, 60, 200])
def test_help_keeps_to_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for verb in ("sample", "train", "score"):
        assert main([verb, "--help"]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= min(columns, 100)


WORDS = st.text(st.characters(exclude_categories=["C", "Z"], max_codepoint=0x2FF), max_size=9)


@given(st.lists(st.tuples(WORDS, st.lists(WORDS, max_size=40), st.integers(0, 10**6)), min_size=1, max_size=4))
def test_a_table_is_as_narrow_as_it_can_be_and_loses_no_word(rows: list[tuple[str, list[str], int]]) -> None:
    lines = render_table(rows, header=("name", "text", "a number of them")).splitlines()
    assert max(map(len, lines)) <= WIDTH
    words = "\n".join(lines[1:]).split()
    for name, text, number in rows:
        for word in [name, *text, f"{number:,}"]:
            assert not word or word in words


@given(st.lists(st.text("ab", min_size=1, max_size=30), max_size=20), st.integers(1, 40))
def test_what_is_folded_fits_and_is_the_same_text(words: list[str], width: int) -> None:
    lines = fold(words, width)
    assert " ".join(lines) == " ".join(words)
    assert all(len(line) <= width or " " not in line for line in lines)
    for line, following in pairwise(lines):
        assert len(line) + 1 + len(following.split(" ")[0]) > width  # no line ends early


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300).map(escape_control_chars), st.integers(2, 74))
def test_a_line_of_any_text_is_folded_to_fit_and_loses_nothing(line: str, columns: int) -> None:
    rows = wrap_line(line, columns)
    assert "".join(rows) == line
    assert all(display_width(row) <= columns for row in rows)
    for row, following in pairwise(rows):
        assert row.endswith(" ") or display_width(row + following[:1]) > columns  # no line ends early


def test_a_sample_keeps_to_80_columns_and_shows_which_lines_are_its_own() -> None:
    printed: list[str] = []
    Console(printed.append).sample(f"{'word ' * 30}\n\n{'x' * 100}\x1b[2J\n{'世' * 50}")
    lines = printed[0].split("\n")
    assert all(display_width(line) <= WIDTH for line in lines)
    assert [line[4] for line in lines] == ["|", " ", " ", "|", "|", " ", "|", " "]
    assert "\x1b" not in printed[0]


def test_a_list_is_folded_between_its_parts_only() -> None:
    items = [f"'word {number}'" for number in range(12)]
    lines = render_pairs({"pieces": items}).splitlines()
    assert len(lines) == 2
    for item in items:
        assert sum(item in line for line in lines) >= 1


def test_headings_are_folded_before_texts_and_stand_at_the_foot() -> None:
    text = "text " * 7 + "text"
    first, second, row = render_table([(text, 1, 2)], header=("text", "number of things", "x" * 23)).splitlines()
    assert first.split() == ["number", "of"]
    assert second.split() == ["text", "things", "x" * 23]
    assert row.startswith(text)
    assert len(row) == len(second) <= 80


@pytest.mark.parametrize("value", ["a  b", " a", "a "])
def test_spaces_of_a_cell_stay(value: str) -> None:
    assert render_table([(value, "|")]) == f"{value}  |"
