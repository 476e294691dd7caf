"""`bench.training --cpu`: rows for each level, to which both sides are restricted."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import common, training
from gpt_cli.runtime.cpu_level import LEVELS, VARIABLE


def test_each_level_has_a_row_and_both_sides_are_restricted_to_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    calls: list[tuple[str | None, str | None, bool]] = []

    def printed(command: list[str], *_: Any) -> dict[str, float]:
        is_ours = "gpt_cli" in command
        calls.append((os.environ.get(VARIABLE), os.environ.get("ATEN_CPU_CAPABILITY"), is_ours))
        speeds = {"tokens_per_s": 1000.0, "seconds_per_step": 0.1, "utilisation": 0.5}
        return {"seconds": 80.0, "process_seconds": 10.0, "val_loss": 1.8, **speeds}

    monkeypatch.setattr(training, "printed", printed)
    monkeypatch.setattr(training.in_new_folder, "__defaults__", (printed,))
    monkeypatch.setattr(common, "OUT", tmp_path / "out")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    command = ["training", "--against", "plain.py", "--text", "text.txt", "--rounds", "1", "--cpu", *LEVELS, "native"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(training, "native_flags", lambda: frozenset({"avx512_bf16"}))
    before = dict(os.environ)
    with pytest.raises(SystemExit) as end:
        training.main()
    assert end.value.code == 1  # 8.0 times sooner, where AVX512-BF16 is to be 10 times
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    to_loss = [(row[0], row[5], *row[-2:]) for row in rows if "sooner" in row]
    assert to_loss == [
        *(("x86-64-v3", "8.0x", "6x", "yes"), ("x86-64-v4", "8.0x", "6x", "yes"), ("native", "8.0x", "10x", "no"))
    ]
    speeds = [(row[0], *row[-2:]) for row in rows if "tokens/s" in row]
    assert {level for level, *_ in speeds} == {*LEVELS, "native"}
    assert [asked for level, asked, _ in speeds if level == "native"] == ["2x", "3x"]
    settings = [(level.name, level.libraries["ATEN_CPU_CAPABILITY"]) for level in LEVELS.values()] + [("native", None)]
    assert {setting[:2] for setting in calls} == set(settings)
    assert all((*setting, side) in calls for setting in settings for side in (False, True))
    assert dict(os.environ) == before
    assert (tmp_path / "out" / "training.json").is_file()
