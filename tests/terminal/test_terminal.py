"""What a terminal shows: a live line while a run trains, a word on long work, whole tables; and nothing drives it."""

import errno
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import unicodedata
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.terminal.escape import display_width, escape_control_chars, shorten
from gpt_cli.terminal.progress import stage_progress, working
from gpt_cli.terminal.table import render_cell, render_table
from gpt_cli.training import console as module
from gpt_cli.training.console import Console
from tests.support.command import subprocess_env

TINY = (
    *("model.n_layer=1", "model.n_head=1", "model.n_embd=8", "model.context_length=8", "train.batch_size=1"),
    *("sample.every=null", "runtime.threads=1"),
)


def watched(*arguments: str, cwd: Path, columns: int) -> str:
    """What `gpt` writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = subprocess_env(TERM="xterm", NO_COLOR="1")
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "gpt_cli", *arguments], cwd=cwd, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    output = b""
    try:
        while chunk := os.read(ours, 4096):
            output += chunk
    except OSError:  # EIO: the process has ended
        pass
    os.close(ours)
    assert process.wait(timeout=120) == 0, output.decode()
    return output.decode()


@pytest.mark.system
def test_a_run_shows_a_live_line_with_step_loss_rate_and_time_left(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("the king and the queen went to the town\n" * 50)
    output = watched("train", "book.txt", *TINY, "train.steps=3000", "eval.every=null", cwd=tmp_path, columns=110)
    assert "0/3000" in output  # from the beginning on
    live = [line for line in re.split(r"[\r\n]", output) if "loss " in line and "tokens/s" in line and "/3000" in line]
    assert live
    assert re.search(r"\d+/3000 \[\d+:\d+<\d+:\d+, .*loss \d\.\d+ .*tokens/s", live[0]), live[0]
    assert "done: all 3,000 steps are done" in output


def test_nothing_is_drawn_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(print)
    with console.live(), console.doing("evaluating"), working("evaluating"), stage_progress() as progress:
        progress("reading", 1, 2)
        console._open_bar(0, 10)
        assert console.bar is None
    assert capsys.readouterr().err == ""


def test_without_a_terminal_a_line_each_half_minute_says_where_a_run_is_whatever_else_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = 0.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: seconds)
    lines: list[str] = []
    console = Console(lines.append)
    for step in range(1, 10):
        seconds += 10.0
        console.note("the gradient norm jumped")
        console.step(step, 1.5, 99.0)
    assert [line[:6] for line in lines if line.startswith("step")] == ["step 4", "step 8"]


class Terminal(io.StringIO):
    """A terminal that says when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        if text.strip("\r\x1b[K\n "):
            self.written.set()
        return count


def test_long_work_is_told_while_it_goes_on_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with working("evaluating"):
        assert "evaluating" in terminal.getvalue()
    row = ""
    for part in terminal.getvalue().split("\r"):
        row = part + row[len(part) :]
    assert row.strip() == ""
    assert "\n" not in terminal.getvalue()


def test_each_stage_of_work_has_a_bar_of_its_own_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with stage_progress() as progress:
        for stage in ("reading", "encoding", "reading"):
            progress(stage, 0, None)
            progress(stage, 1_000_000, 2_000_000)
    stages = re.findall(r"reading|encoding", terminal.getvalue())
    assert [name for name, _ in groupby(stages)] == ["reading", "encoding", "reading"]
    assert terminal.getvalue().endswith("\r")


def test_a_terminal_that_is_closed_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(Terminal):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "closed")

    monkeypatch.setattr(sys, "stderr", Closed())
    with working("evaluating"), stage_progress() as progress:
        progress("reading", 1, 2)


def test_the_bar_says_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "SECOND", 0.01)
    console = Console(print)
    with console.live():
        console._open_bar(0, 10)
        with console.doing("evaluating and saving"):
            for _ in range(6000):
                terminal.written.clear()
                assert terminal.written.wait(60)
                if "evaluating and saving" in terminal.getvalue():
                    break
        assert "evaluating and saving: " in terminal.getvalue()


TEXTS = st.text(st.characters() | st.sampled_from("\x1b\x9b\r\u202e\u2066\u200d\u3000 世\u0301"), max_size=12)
ROWS = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(TEXTS | st.integers() | st.none(), min_size=n, max_size=n), min_size=1, max_size=5)
)


def drives_a_terminal(character: str) -> bool:
    """Controls, surrogates, line separators, and what sets a direction."""
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(character) in (
        *("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"),
    )


@given(ROWS, st.booleans())
def test_a_table_has_each_cell_whole_and_aligned_by_display_width_and_drives_no_terminal(
    rows: list[list[Any]], headed: bool
) -> None:
    header = [f"name {index}" for index in range(len(rows[0]))] if headed else []
    lines = render_table(rows, header=header).split("\n")
    shown = [[render_cell(cell) for cell in row] for row in ([header] if headed else []) + rows]
    assert len(lines) == len(shown)
    assert not any(map(drives_a_terminal, "".join(lines)))
    widths = [max(map(display_width, column)) for column in zip(*shown, strict=True)]
    for line, cells in zip(lines, shown, strict=True):
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            numeric = all(isinstance(row[index], int | None) for row in rows)
            padding = " " * (width - display_width(cell))
            place = padding + cell if numeric else cell + padding
            assert line.startswith(place) or line == place.rstrip()
            line = line[len(place) + 2 :]
        assert line == ""


@given(st.text(st.characters()))
def test_no_text_drives_a_terminal_or_hides_in_it(text: str) -> None:
    escaped = escape_control_chars(text)
    assert not any(map(drives_a_terminal, escaped))
    assert not set(escaped) & set("\xad\u200e\u200f\u061c\u2060\ufeff\U000e0041")
    assert escape_control_chars(escaped) == escaped
    assert escape_control_chars(text, keep="\n\t").count("\n") == text.count("\n")


@pytest.mark.parametrize("text", ["می\u200cخواهم", "👨\u200d👩\u200d👧", "ភាសា\u200bខ្មែរ", "❤\ufe0f", "e\u0301"])
def test_a_text_is_left_as_its_script_writes_it(text: str) -> None:
    assert escape_control_chars(text) == text


@given(st.text(st.characters()).map(escape_control_chars), st.integers(2, 40))
def test_a_shortened_text_fits_and_says_that_it_was_cut(text: str, columns: int) -> None:
    short = shorten(text, columns)
    assert display_width(short) <= columns
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))


@pytest.mark.parametrize("value", ["a  b", " a", "a "])
def test_spaces_of_a_cell_stay(value: str) -> None:
    assert render_table([(value, "|")]) == f"{value}  |"


def test_a_sample_shows_which_lines_are_its_own() -> None:
    printed: list[str] = []
    Console(printed.append).sample(f"{'word ' * 30}\n\nx\x1b[2J\n{'世' * 50}")
    assert printed == [f"    | {'word ' * 30}\n    | \n    | x\\x1b[2J\n    | {'世' * 50}"]


@pytest.mark.parametrize("columns", [40, 45, 60, 200])
def test_help_keeps_to_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for verb in ("sample", "train", "score"):
        assert main([verb, "--help"]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= min(columns, 100)
