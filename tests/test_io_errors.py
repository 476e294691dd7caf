"""Input and output errors of the system itself: one clear error, nothing lost, and the same command resumes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from test_kill_anytime import CONFIG, DEFAULTS, TEXT

from tests.support.waiting import HANG, wait_until

pytestmark = [
    pytest.mark.robust,
    pytest.mark.skipif(
        sys.platform != "linux" or not shutil.which("gcc"), reason="failing_disk.c is for Linux and gcc"
    ),
]
ALL = {"write", "fsync", "rename", "read", "create", "mkdir", "flock"}


@pytest.fixture
def preloaded(tmp_path: Path) -> dict[str, str]:
    """What stands between Python and the C library."""
    made = tmp_path / "failing_disk.so"
    source = ROOT / "tests" / "failing_disk.c"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", made, source], check=True)
    return {"LD_PRELOAD": str(made)}


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A file system that fails, at `mount`; skipped where there is no FUSE, or nothing may be mounted."""
    found = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=False
    ) if shutil.which("pkg-config") else None  # fmt: skip
    if found is None or found.returncode or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("there is no FUSE here to build and mount a file system with")
    made, control, folder, mount = (tmp_path / name for name in ("failing_fs", "control", "behind", "mount"))
    source = ROOT / "tests" / "failing_fs.c"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-O1", "-o", made, source, *found.stdout.split()], check=True)
    control.write_bytes(bytes(64))
    folder.mkdir()
    mount.mkdir()
    with open(tmp_path / "said", "w") as said:
        process = subprocess.Popen([made, folder, control, "-f", mount], stderr=said, stdout=said)
    try:
        wait_until(lambda: os.path.ismount(mount) or process.poll() is not None)
        if process.poll() is not None:
            pytest.skip(f"nothing can be mounted here: {(tmp_path / 'said').read_text().strip()}")
        yield {"CONTROL": str(control)}
    finally:
        process.terminate()  # it unmounts
        process.wait(timeout=HANG)


def fail_and_resume(folder: Path, disk: dict[str, str], times: int, count: Callable[[str, object], None]) -> None:
    (folder / "text.txt").write_text(TEXT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", ROOT / "tests" / "failing_disk.py", str(times), "1"],
        input=CONFIG.format(**DEFAULTS), cwd=folder, capture_output=True, text=True, timeout=1800, check=False,
        env={**os.environ, **disk, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    count("faults", found["met"])
    assert not found["wrong"], "\n".join(found["wrong"])
    assert set(found["calls"]) == ALL
    assert all(found["calls"].values()), found["calls"]  # each was asked


@pytest.mark.parametrize("times", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_whatever_the_disk_refuses_is_one_error_and_the_same_command_resumes_to_the_same_bits(
    tmp_path: Path, preloaded: dict[str, str], times: int, record_property: Callable[[str, object], None]
) -> None:
    fail_and_resume(tmp_path, preloaded, times, record_property)


@pytest.mark.slow
def test_whatever_a_real_file_system_refuses_is_one_error_and_the_same_command_resumes_to_the_same_bits(
    tmp_path: Path, mounted: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    fail_and_resume(tmp_path, mounted, 6, record_property)
