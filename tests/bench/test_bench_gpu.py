"""`python -m bench.gpu` runs every part on a CPU, saves each figure at once, and outlives a part that fails."""

import json
import sys
from pathlib import Path

import pytest
import torch

from bench import gpu
from bench.gpu import PARTS, Setup, append, run_part, summary

pytestmark = pytest.mark.robust

HANGS = "import subprocess as s, sys; s.run([sys.executable, '-c', 'import time; time.sleep(10**6)'])"
FIGURES = {
    "gpt2 eager": {"tokens_per_second", "first_step_seconds", "peak_memory_bytes", "seconds_by_part"},
    "gpt2 profile": {"table"},
    "gpt2 decode": {"eager_1", "eager_64"},
    "shakespeare": {"seconds_to_loss", "steps", "val_loss", "best_val_loss", "train_seconds", "process_seconds"},
    "start": {"seconds_to_first_step", "seconds_of_one_token"},
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("ROMEO: It was the best of times, it was the worst of times.\n" * 100)
    return path


def lines(out: Path) -> list[tuple[str, str, object]]:
    return [tuple(json.loads(line).values()) for line in out.read_text().splitlines()]


@pytest.mark.parametrize("part", FIGURES)
def test_each_part_measures_what_it_says(part: str, text: Path, tmp_path: Path) -> None:
    actual: dict[str, object] = {}
    PARTS[part][0](Setup("cpu", True, text, tmp_path, lambda **figures: actual.update(figures)))
    assert actual.keys() >= FIGURES[part]
    numbers = {name: value for name, value in actual.items() if isinstance(value, int | float)}
    assert all(value >= 0 for value in numbers.values())
    assert part != "shakespeare" or (actual["steps"], actual["seconds_to_loss"]) == (6, None)


def test_the_command_saves_figures_and_a_summary_of_the_parts_that_are_asked_for(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.jsonl"
    options = ["--device", "cpu", "--quick", "--only", "test", "--limit", "9000"]
    monkeypatch.setattr(sys, "argv", ["bench.gpu", "--text", str(text), "--out", str(out), *options])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert not ended.value.code
    figures = {(part, name): value for part, name, value in lines(out)}
    assert {part for part, _ in figures} == {"machine", "tests"}
    if not torch.cuda.is_available():
        assert "skipped" in str(figures["tests", "outcome"])  # collected, at least
    assert "tests: outcome = " in capfd.readouterr().out
    assert (tmp_path / "gpu.txt").read_text() == summary(out)


@pytest.mark.parametrize(
    ("code", "limit", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", 600, "exit code -9"),
        ("raise SystemExit(3)", 600, "exit code 3"),
        (
            "import subprocess as s, sys; s.run([sys.executable, '-c', 'import time; time.sleep(10**6)'])",
            0.5,
            "took more than 0 s",
        ),
    ],
)
def test_a_part_that_fails_or_hangs_is_ended_and_told_and_what_was_there_stays(
    code: str, limit: float, reason: str, tmp_path: Path
) -> None:
    out = tmp_path / "gpu.jsonl"
    append(out, "part", {"figure": 1.5})
    assert not run_part("part", [sys.executable, "-c", code], limit, out)
    assert run_part("other", [sys.executable, "-c", ""], 600, out)
    assert [line[:2] for line in lines(out)] == [
        *(("part", "figure"), ("part", "failed"), ("part", "seconds")),
        ("other", "seconds"),
    ]
    assert lines(out)[1][2] == reason
    assert f"failed: {reason}" in summary(out)


def test_all_parts_fit_into_ten_minutes_one_after_the_other_or_are_told() -> None:
    """The last ones give way: `--limit` holds for all together."""
    assert sum(limit for part, (_, limit) in PARTS.items() if part in ("tests", "gpt2 compiled", "gpt2 decode")) < 500
    assert set(FIGURES) | {"tests"} <= set(PARTS)
    assert {part for part, _ in gpu.AIMS.values()} <= set(PARTS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.gpu", "--text", "text.txt"])
    with pytest.raises(SystemExit, match="there is no CUDA device here"):
        gpu.main()
