"""Kill it, signal it, start it many times at once: the result is bit for bit that of a run that was never disturbed."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt_cli.run.log import read_events
from gpt_cli.runtime.device import has_fast_bf16
from tests.support.fault_injection import disturbed, remains

Count = Callable[[str, object], None]  # takes down for promises.py how many faults a test injects


def assert_killing_changes_nothing(
    tmp_path: Path, kills: int, seed: int, choices: dict[str, Any], count: Count
) -> None:
    count("faults", kills)
    if not has_fast_bf16(torch.device("cpu")):
        choices = {**choices, "precision": "fp32"}
    result = disturbed(tmp_path, "kill_loop", kills, seed, **choices)
    assert result["kills"] == kills
    assert result["inside"] == kills // 4
    assert remains(tmp_path / "killed") == remains(tmp_path / "whole")


pytestmark = [
    pytest.mark.robust,
    pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL"),
]


@pytest.mark.parametrize(
    ("seed", "choices"),
    [
        pytest.param(1, {}, id="muon-dropout-accumulation"),
        pytest.param(2, {"optim": "{name: adamw, ema: 0.9}", "precision": "bf16"}, id="adamw-ema-bf16"),
    ],
)
def test_a_run_killed_20_times_ends_as_if_it_never_was(
    tmp_path: Path, seed: int, choices: dict[str, Any], record_property: Count
) -> None:
    assert_killing_changes_nothing(tmp_path, 20, seed, choices, record_property)


CHOICES = {
    "precision": ("fp32", "bf16"),
    "micro_batch_size": (6, 2),
    "dropout": (0.0, 0.1),
    "tokenizer": ("{kind: char}", "{kind: bpe, vocab_size: 270}"),
    "optim": ("{name: adamw, lr: 1e-3}", "{name: muon}"),
    "compile": ("false", "true"),
}


def pairs(case: dict[str, Any]) -> set[tuple[tuple[str, Any], ...]]:
    """The pairs of choices that a case tries together."""
    return set(itertools.combinations(sorted(case.items()), 2))


def covering_cases() -> list[dict[str, Any]]:
    """Few cases in which any two choices meet, and so many more that there are ten."""
    grid = [dict(zip(CHOICES, values, strict=True)) for values in itertools.product(*CHOICES.values())]
    missing = set().union(*map(pairs, grid))
    cases: list[dict[str, Any]] = []
    while missing or len(cases) < 10:
        cases.append(max((case for case in grid if case not in cases), key=lambda case: len(pairs(case) & missing)))
        missing -= pairs(cases[-1])
    return cases


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "choices"), [*enumerate(covering_cases(), start=10)], ids=str)
def test_200_kills_over_ten_ways_to_train_change_nothing(
    tmp_path: Path, seed: int, choices: dict[str, Any], record_property: Count
) -> None:
    assert_killing_changes_nothing(tmp_path, 20, seed, choices, record_property)


# Signals


def assert_signals_change_nothing(tmp_path: Path, signals: int, seed: int, count: Count, **choices: Any) -> None:
    count("faults", signals)
    result = disturbed(tmp_path, "signal_loop", signals, seed, **choices)
    assert result["signals"] == signals
    assert result["in_save"] == signals // 8
    assert remains(tmp_path / "signalled") == remains(tmp_path / "whole")


def test_a_run_asked_to_stop_at_20_moments_ends_as_if_it_never_was(tmp_path: Path, record_property: Count) -> None:
    assert_signals_change_nothing(tmp_path, 20, 1, record_property)
    events = [event["event"] for event in read_events(tmp_path / "signalled")]
    assert "died" not in events


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
def test_100_signals_at_random_moments_change_nothing(tmp_path: Path, seed: int, record_property: Count) -> None:
    assert_signals_change_nothing(tmp_path, 20, seed, record_property)


@pytest.mark.slow
def test_signals_while_a_model_is_compiled_change_nothing(tmp_path: Path, record_property: Count) -> None:
    assert_signals_change_nothing(tmp_path, 16, 7, record_property, compile="true")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++")
def test_ctrl_c_that_ends_the_compiler_of_a_step_too_changes_nothing(tmp_path: Path) -> None:
    """Ctrl-C goes to every process of the group: here it comes from the compiler, at its first call after step 0."""
    compiler = tmp_path / "g++"
    compiler.write_text(
        "#!/bin/sh\n"
        f"if [ -s {tmp_path}/stopped/metrics.jsonl ] && mkdir {tmp_path}/signalled; then kill -INT 0; sleep 60; fi\n"
        f'exec {shutil.which("g++")} "$@"\n'
    )
    compiler.chmod(0o755)
    (tmp_path / "book.txt").write_text("Once upon a time there was a mouse.\n" * 200)
    options = ["train", "book.txt", "model.n_layer=1", "model.n_embd=16", "model.context_length=16", "train.steps=3"]
    options += ["runtime.engine=torch", "runtime.compile=true", "runtime.threads=1", "sample.every=null"]
    environment = {**os.environ, "CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}

    def train(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpt_cli", *options, f"run_dir={name}", "--json"]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, start_new_session=True
        )

    stopped = train("stopped")
    assert (tmp_path / "signalled").is_dir()
    assert stopped.returncode == 128 + signal.SIGINT, stopped.stderr
    assert "does not work here" not in stopped.stderr
    resumed, whole = json.loads(train("stopped").stdout), json.loads(train("whole").stdout)
    assert resumed["weights_sha256"] == whole["weights_sha256"]


# Many at once


def test_of_20_starts_at_once_exactly_one_trains_and_the_others_say_who_does(
    tmp_path: Path, record_property: Count
) -> None:
    record_property("faults", 20)
    result = disturbed(tmp_path, "concurrent_starts", 20)
    assert result["refused"] == [1] * 19
    assert result["trained"] == [128 + signal.SIGTERM]
    assert result["sampled"] == [0]
    refusals = [file.read_text() for file in tmp_path.glob("said-*") if "error:" in file.read_text()]
    assert len(refusals) == 19
    for output in refusals:
        error, hint = output.splitlines()[-2:]
        assert re.match(r"error: another process is writing to shared \((process \d+ on |holder unknown)", error)
        assert hint == "hint: run_dir=runs/NAME starts a new run"
    assert remains(tmp_path / "shared") == remains(tmp_path / "whole")
    assert [event["event"] for event in read_events(tmp_path / "shared")].count("started") == 2  # it, and its end
