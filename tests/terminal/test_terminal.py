"""What a terminal shows: a live line while a run trains, tables that fit, and a word within a second of long work."""

import errno
import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.terminal.escape import display_width
from gpt_cli.terminal.progress import stage_progress, working
from gpt_cli.terminal.table import render_pairs, render_table
from gpt_cli.training import console as module
from gpt_cli.training.console import Console
from tests.support.command import ROOT, subprocess_env

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


ROWS = [("blocks.*.attention.q_norm.weight", "384 x 128", 4, 196_608), ("head.weight", "103 x 128", 1, 13_184)]
LONG = "a sentence of many words that has to be folded somewhere, since no terminal is as wide as it is long"


@pytest.mark.parametrize("columns", [40, 50, 60, 72, 80])
def test_a_table_fits_the_terminal_and_loses_no_word(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    tables = [
        render_table(ROWS, header=("parameters", "shape", "tensors", "elements")),
        render_table([("check", "ok", LONG), ("x" * 30, "FAILED", LONG)], header=("check", "result", "figure")),
        render_pairs({"weights sha256": "ab" * 32, "text": LONG}),
    ]
    for table in tables:
        assert max(map(display_width, table.splitlines())) <= columns, table
    for row in ROWS:
        for word in (row[0], f"{row[3]:,}"):
            assert word in tables[0]
    assert "".join(tables[1].split()).count("".join(LONG.split())[-12:]) == 2
    assert "".join(tables[2].split()).count("ab" * 32) == 1


@pytest.mark.system
@pytest.mark.parametrize("columns", ["40", "60"])
def test_verbs_keep_to_a_narrow_terminal(
    gpt_here: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "book.txt").write_text("the king and the queen went to the town\n" * 50)
    for name in ("a", "b"):
        assert gpt_here("train", "book.txt", *TINY, "train.steps=1", f"run_dir=runs/{name}").rc == 0
    monkeypatch.setenv("COLUMNS", columns)
    for arguments in (
        *(["info", "runs/a"], ["doctor", "runs/a"], ["diff", "runs/a", "runs/b"], ["data", "inspect", "book.txt"]),
        *(["data", "list"], ["eval", "runs/a"], ["runs"], ["attention", "runs/a", "--ascii"]),
        *(["config", "show", "configs/quickstart.yaml"], ["tokenize", "book.txt", "--text", "the king"]),
    ):
        outcome = gpt_here(*arguments)
        assert outcome.rc == 0, outcome.stderr
        widest = max(outcome.stdout.splitlines(), key=display_width)
        assert display_width(widest) <= int(columns), (arguments, widest)
