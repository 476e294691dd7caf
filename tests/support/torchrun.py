"""Trainings by several processes on this machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from gpt_cli.config import dump_config
from tests.support.command import subprocess_env
from tests.support.tiny_run import make_config
from tests.support.waiting import HANG

SMALL = ("train.batch_size=8", "train.micro_batch_size=2", "sample.every=6")
SHARDED = ("parallel.shard=optimizer",)


def worker_env(**variables: str) -> dict[str, str]:
    return subprocess_env(OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR", **variables)


def torchrun(processes: int, tmp_path: Path, names: list[str]) -> "subprocess.CompletedProcess[str]":
    """Train the configs of these names in so many processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    launcher += ["--log-dir", str(tmp_path / "logs")]
    files = [str(tmp_path / f"{name}.yaml") for name in names]
    return subprocess.run(
        [*launcher, "-m", "tests.support.torchrun_worker", *files],
        env=worker_env(),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )


def train_in(processes: int, tmp_path: Path, names: list[str]) -> None:
    completed = torchrun(processes, tmp_path, names)
    assert completed.returncode == 0, completed.stderr[-3000:]


def start(tmp_path: Path, *overrides: str) -> "subprocess.Popen[str]":
    """`gpt train --devices 2` of a run that does not end."""
    config = make_config(tmp_path, *SMALL, "train.steps=1000000", "checkpoint.every=2", "eval.every=2", *overrides)
    (tmp_path / "run.yaml").write_text(dump_config(config))
    command = [sys.executable, "-m", "gpt_cli", "train", "--config", str(tmp_path / "run.yaml"), "--devices", "2"]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return subprocess.Popen(command, env=worker_env(TMPDIR=str(temporary)), stderr=subprocess.PIPE, text=True)


def workers(launcher: "subprocess.Popen[str]") -> list[int]:
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"--config" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def assert_one_error_when_killed(process: "subprocess.Popen[str]") -> None:
    os.kill(workers(process)[1], signal.SIGKILL)
    _, stderr = process.communicate(timeout=HANG)
    assert process.returncode == 1
    assert [line for line in stderr.splitlines() if line.startswith(("error", "hint", "Traceback"))] == [
        "error: process 1 was killed by SIGKILL",
        "hint: the same command resumes from the newest checkpoint",
    ]
