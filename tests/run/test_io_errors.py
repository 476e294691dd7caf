"""Input and output errors of the system itself: one clear error, nothing lost, and the same command resumes."""

import errno
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpt_cli.run.checkpoint import list_checkpoints, load
from tests.support.command import ROOT, Outcome, subprocess_env
from tests.support.fault_injection import CONFIG, DEFAULTS, remains
from tests.support.gated_training import GATED
from tests.support.tiny_run import TEXT
from tests.support.waiting import HANG, wait_until

pytestmark = [
    pytest.mark.robust,
    pytest.mark.skipif(
        sys.platform != "linux" or not shutil.which("gcc"), reason="io_fault_preload.c is for Linux and gcc"
    ),
]
CALLS = {"write", "fsync", "rename", "read", "create", "mkdir", "flock"}
TRAIN = ["train", "--config", "config.yaml", "train.steps=30"]
RUN = "run_dir=mount/turned"
CONTROL = struct.Struct("64s4q")  # Control of io_fault_fuse.c


@dataclass(frozen=True)
class Turn:
    """What a file system refuses from one moment on, and what is said of it; a run that `goes_on` is not disturbed."""

    calls: str
    error: int
    says: str
    goes_on: bool = False


TURNS = {
    "read-only": Turn(
        "write fsync create mkdir rename unlink rmdir truncate",
        errno.EROFS,
        "read-only file system",
    ),
    "over its quota": Turn("write create mkdir", errno.EDQUOT, "disk quota exceeded"),
    "without locks": Turn("flock", errno.ENOLCK, "no locks available", goes_on=True),
}


@pytest.fixture
def preload_env(tmp_path: Path) -> dict[str, str]:
    """What stands between Python and the C library."""
    library = tmp_path / "io_fault_preload.so"
    source = ROOT / "tests" / "support" / "io_fault_preload.c"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library)}


@pytest.fixture
def mount_env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A file system that fails, at `mount`; skipped where there is no FUSE, or nothing may be mounted."""
    actual = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=False
    ) if shutil.which("pkg-config") else None  # fmt: skip
    if actual is None or actual.returncode or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("there is no FUSE here to build and mount a file system with")
    program, control, folder, mount = (tmp_path / name for name in ("io_fault_fuse", "control", "behind", "mount"))
    source = ROOT / "tests" / "support" / "io_fault_fuse.c"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-O1", "-o", program, source, *actual.stdout.split()], check=True)
    control.write_bytes(bytes(CONTROL.size))
    folder.mkdir()
    mount.mkdir()
    with open(tmp_path / "said", "w") as log:
        process = subprocess.Popen([program, folder, control, "-f", mount], stderr=log, stdout=log)
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
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.io_fault_loop", str(times), "1"],
        input=CONFIG.format(**DEFAULTS), cwd=folder, capture_output=True, text=True, timeout=1800, check=False,
        env=subprocess_env(**disk, OMP_NUM_THREADS="1"),
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    actual = json.loads(completed.stdout)
    count("faults", actual["met"])
    assert not actual["wrong"], "\n".join(actual["wrong"])
    assert set(actual["calls"]) == CALLS
    assert all(actual["calls"].values()), actual["calls"]  # each was asked


@pytest.mark.parametrize("times", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_whatever_the_disk_refuses_is_one_error_and_the_same_command_resumes_to_the_same_bits(
    tmp_path: Path, preload_env: dict[str, str], times: int, record_property: Callable[[str, object], None]
) -> None:
    fail_and_resume(tmp_path, preload_env, times, record_property)


@pytest.mark.slow
def test_whatever_a_real_file_system_refuses_is_one_error_and_the_same_command_resumes_to_the_same_bits(
    tmp_path: Path, mount_env: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    fail_and_resume(tmp_path, mount_env, 6, record_property)


@pytest.fixture
def real_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of its own, mounted at `mount`; skipped where nothing may be mounted."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    if os.geteuid() or not shutil.which("mkfs.ext4"):
        pytest.skip("only root mounts, and mkfs.ext4 makes what is mounted")
    with image.open("wb") as file:
        file.truncate(64 << 20)
    mount.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    completed = subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True, text=True, check=False)
    if completed.returncode:
        pytest.skip(f"nothing can be mounted here: {completed.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True)


@pytest.fixture(scope="module")
def undisturbed_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an undisturbed training leaves."""
    folder = prepare_folder(tmp_path_factory.mktemp("whole"))
    environment = subprocess_env()
    command = [sys.executable, "-m", "gpt_cli", *TRAIN, "run_dir=whole"]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=HANG)
    return remains(folder / "whole")


def prepare_folder(folder: Path) -> Path:
    (folder / "text.txt").write_text(TEXT)
    (folder / "config.yaml").write_text(CONFIG.format(**DEFAULTS))
    return folder


def train_through(folder: Path, turn: Callable[[], object]) -> tuple[int, str]:
    """Train on `mount` in `folder`; `turn` is called before step 20. The exit code, and what was said."""
    os.mkfifo(folder / "gate")
    process = subprocess.Popen(
        [sys.executable, "-c", GATED, *TRAIN, RUN], cwd=folder, env=subprocess_env(),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    gate = os.open(folder / "gate", os.O_WRONLY)  # returns when training has come there
    turn()
    os.close(gate)
    _, messages = process.communicate(timeout=HANG)
    return process.returncode, messages


def assert_one_error(messages: str, turn: Turn) -> None:
    error = messages.splitlines()[-1]
    assert messages.count("error: ") == 1, messages
    assert "Traceback" not in messages
    assert error.startswith("error: ")
    assert turn.says in error


def assert_only_reading_goes_on(folder: Path, turn: Turn, gpt: Callable[..., Outcome]) -> None:
    """While it is as it turned: what was saved verifies and is read, and every start is refused before it trains."""
    checkpoints = list_checkpoints(folder / "mount/turned")
    assert len(checkpoints) == 2
    for checkpoint in checkpoints:
        load(checkpoint)
    assert gpt("sample", "--run", "mount/turned", "--max-new-tokens", "3").rc == 0
    for run in (RUN, "run_dir=mount/new"):
        outcome = gpt(*TRAIN, run)
        assert outcome.rc == 1
        assert "step" not in outcome.stderr
        assert_one_error(outcome.stderr, turn)


@pytest.mark.slow
@pytest.mark.parametrize("how", TURNS)
def test_a_file_system_that_turns_while_it_is_trained_on_is_one_error_and_loses_nothing(
    how: str, tmp_path: Path, mount_env: dict[str, str], undisturbed_files: dict[str, str], gpt: Callable[..., Outcome]
) -> None:
    turn, folder = TURNS[how], prepare_folder(tmp_path)

    def refuse(number: int) -> None:
        Path(mount_env["CONTROL"]).write_bytes(CONTROL.pack(turn.calls.encode(), number, turn.error, 1, 0))

    code, messages = train_through(folder, lambda: refuse(1))
    if turn.goes_on:
        assert code == 0, messages
        assert remains(folder / "mount/turned") == undisturbed_files
    else:
        assert code == 1, messages
        assert_one_error(messages, turn)
    assert_only_reading_goes_on(folder, turn, gpt)
    refuse(0)
    for name in ("turned", "new"):  # the same commands
        completed = gpt(*TRAIN, f"run_dir=mount/{name}")
        assert completed.rc == 0, completed.stderr
        assert remains(folder / "mount" / name) == undisturbed_files


@pytest.mark.slow
def test_an_ext4_that_is_made_read_only_while_it_is_trained_on_is_one_error_and_loses_nothing(
    tmp_path: Path, real_disk: Path, undisturbed_files: dict[str, str], gpt: Callable[..., Outcome]
) -> None:
    turn, folder = TURNS["read-only"], prepare_folder(tmp_path)
    abort_command = [
        "mount",
        "-o",
        "remount,abort",
        real_disk,
    ]  # as the kernel does when the disk fails; what is open stays open
    code, messages = train_through(folder, lambda: subprocess.run(abort_command, check=True))
    assert code == 1, messages
    assert_one_error(messages, turn)
    assert_only_reading_goes_on(folder, turn, gpt)
    shutil.copytree(real_disk / "turned", folder / "elsewhere")
    completed = gpt("train", "elsewhere")
    assert completed.rc == 0, completed.stderr
    assert "resuming from step 20" in completed.stderr
    assert remains(folder / "elsewhere") == undisturbed_files
