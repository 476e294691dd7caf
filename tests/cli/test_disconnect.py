"""What reads us may go away; what we train is not lost."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.command import Outcome, subprocess_env
from tests.support.gated_training import GATED
from tests.support.tiny_run import TEXT
from tests.support.waiting import HANG, wait_until

pytestmark = pytest.mark.robust


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    """A folder with a text and a config of many steps."""
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "tiny.yaml").write_text(
        "run_dir: runs/tiny\ndata: {source: text.txt}\n"
        "model: {n_layer: 1, n_head: 2, n_embd: 16, context_length: 16}\ntrain: {steps: 300, batch_size: 4}\n"
        "sample: {every: null}\nlog: {every: 1}\nruntime: {device: cpu, threads: 1}\n"
    )
    return tmp_path


def start(
    work_dir: Path, *overrides: str, program: Sequence[str] = (sys.executable, "-m", "gpt_cli"), **options: object
) -> subprocess.Popen[bytes]:
    command = [*program, "train", "--config", "tiny.yaml", *overrides]
    environment = subprocess_env()
    return subprocess.Popen(command, cwd=work_dir, env=environment, stdin=subprocess.DEVNULL, **options)


def wait_for_steps(work_dir: Path, steps: int, process: subprocess.Popen[bytes]) -> None:
    metrics = work_dir / "runs/tiny/metrics.jsonl"
    wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > steps, process)


def newest_step(work_dir: Path) -> int:
    return max(int(path.name.removeprefix("step-")) for path in (work_dir / "runs/tiny/checkpoints").glob("step-*"))


def test_a_terminal_that_closes_does_not_end_a_training_that_ignores_hangups(work_dir):
    ours, theirs = pty.openpty()
    os.mkfifo(work_dir / "gate")
    process = start(
        work_dir, "eval.every=40", program=[sys.executable, "-c", GATED], stdout=theirs, stderr=theirs,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    os.close(theirs)
    gate = os.open(work_dir / "gate", os.O_WRONLY)  # returns when training has come there
    os.close(ours)  # from now on every write fails with EIO
    os.close(gate)
    assert process.wait(timeout=HANG) == 0
    assert newest_step(work_dir) == 300


@pytest.mark.parametrize("how", ["removed", "moved", "replaced", "removed, and nothing can be made beside it"])
def test_a_run_directory_that_goes_while_it_is_trained_is_an_error_within_one_save_and_the_weights_are_beside(
    work_dir: Path, gpt_here: Callable[..., Outcome], how: str
) -> None:
    os.mkfifo(work_dir / "gate")
    process = start(work_dir, "eval.every=40", "checkpoint.every=25", program=[sys.executable, "-c", GATED],
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
    gate = os.open(work_dir / "gate", os.O_WRONLY)  # returns when training has come to step 20
    run = work_dir / "runs/tiny"
    run.rename(work_dir / "runs/elsewhere") if how == "moved" else shutil.rmtree(run)
    if how == "replaced":
        run.mkdir()
    if "nothing" in how:
        (work_dir / "runs").rmdir()
        (work_dir / "runs").touch()
    os.close(gate)
    _, output = process.communicate(timeout=HANG)
    assert process.returncode == 1, output
    error = output.decode().partition("error: ")[2].replace("\n", " ")
    assert error.startswith("run_dir runs/tiny was removed or moved while it was trained"), output
    if "nothing" in how:
        assert "cannot be saved beside it" in error
        return
    saved = work_dir / "runs/tiny-rescued/checkpoints/step-00000025"
    assert f"train.init_from={saved.relative_to(work_dir)}" in error
    assert gpt_here("sample", "--run", saved, "--max-new-tokens", "3", "--engine", "torch").rc == 0
    if how == "removed":  # and the name is free
        assert gpt_here("train", "--config", "tiny.yaml", "train.steps=5").rc == 0
    if how == "replaced":
        assert list(run.iterdir()) == []  # nothing is written into what is another's


def test_a_hangup_saves_and_leaves(work_dir):
    process = start(work_dir, "train.steps=1000000", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_steps(work_dir, 20, process)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=HANG) == 128 + signal.SIGHUP
    assert newest_step(work_dir) > 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_behind_stderr_loses_messages_and_neither_the_training_nor_the_exit_code(work_dir):
    with open("/dev/full", "wb") as full:
        assert start(work_dir, "train.steps=20", stdout=subprocess.DEVNULL, stderr=full).wait(timeout=HANG) == 0
        assert newest_step(work_dir) == 20
        assert start(work_dir, "model.n_layer=2", stdout=subprocess.DEVNULL, stderr=full).wait(timeout=HANG) == 2


def test_an_evaluation_on_a_changed_text_is_refused_and_another_text_must_be_named(gpt_here, work_dir):
    assert gpt_here("train", "--config", "tiny.yaml", "train.steps=5").rc == 0
    before = json.loads(gpt_here("eval", "--json").stdout)
    (work_dir / "text.txt").write_text(TEXT.replace("best", "worst"))  # the same letters
    refused = gpt_here("eval", "--json")
    assert (refused.rc, refused.stdout) == (2, "")
    assert "text.txt has changed" in refused.stderr
    (work_dir / "text.txt").write_text(TEXT)
    assert json.loads(gpt_here("eval", "--json").stdout) == before


def test_an_evaluation_computes_as_the_training_did(gpt_here, work_dir):
    trained = gpt_here("train", "--config", "tiny.yaml", "train.steps=5", "runtime.precision=fp32", "--json")
    assert json.loads(gpt_here("eval", "--json").stdout)["loss"] == json.loads(trained.stdout)["val_loss"]
