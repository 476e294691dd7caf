"""Input and output errors of the system itself: one clear error, nothing lost, and the same command resumes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT
from test_kill_anytime import CONFIG, DEFAULTS, TEXT

pytestmark = [
    pytest.mark.robust,
    pytest.mark.skipif(
        sys.platform != "linux" or not shutil.which("gcc"), reason="failing_disk.c is for Linux and gcc"
    ),
]
ALL = ("write", "fsync", "rename", "read", "create", "mkdir", "flock")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands between Python and the C library; skipped where it would not be asked, as in a static Python."""
    made = tmp_path_factory.mktemp("shim") / "failing_disk.so"
    source = ROOT / "tests" / "failing_disk.c"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


def fail_and_resume(folder: Path, shim: Path, times: int) -> dict[str, object]:
    (folder / "text.txt").write_text(TEXT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", ROOT / "tests" / "failing_disk.py", str(times), "1"],
        input=CONFIG.format(**DEFAULTS), cwd=folder, capture_output=True, text=True, timeout=1800, check=False,
        env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("times", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_whatever_the_disk_refuses_is_one_error_and_the_same_command_resumes_to_the_same_bits(
    tmp_path: Path, shim: Path, times: int, record_property: Callable[[str, object], None]
) -> None:
    found = fail_and_resume(tmp_path, shim, times)
    record_property("faults", found["met"])
    assert found["wrong"] == []
    calls = found["calls"]
    assert isinstance(calls, dict)
    assert set(calls) == set(ALL)
    assert all(calls.values()), calls  # each was asked
