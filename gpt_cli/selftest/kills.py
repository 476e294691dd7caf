"""Training that is killed again and again ends bit for bit as training that was left alone."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import gpt_cli
from gpt_cli.config import Config, dump_config
from gpt_cli.config.keys import replace_keys
from gpt_cli.errors import UserError
from gpt_cli.files import list_directory
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.run.log import read_events, read_metrics
from gpt_cli.selftest.check import Check
from gpt_cli.training.console import Console
from gpt_cli.training.loop import train
from gpt_cli.training.summary import Summary

_LONGEST_LIFE = 0.5  # seconds of training before a kill
_PATIENCE = 600.0  # seconds after which a process that has not started hangs
_STEPS_AFTERWARDS = 6


def check_kills(folder: Path, config: Config, kills: int, seed: int) -> Check:
    """Kill `kills` real `gpt train` processes, every fourth inside a save, then let the run end and compare it.

    Works in `folder`. The schedule of `config` must not depend on the number of steps.
    """
    dice = random.Random(seed)
    config_file = folder / "killed.yaml"
    killed = with_steps(config, folder / "killed", 1_000_000)
    config_file.write_text(dump_config(killed))
    inside = 0
    for kill in range(kills):
        inside += _kill_one(config_file, folder / "killed", dice.uniform(0.0, _LONGEST_LIFE), in_save=kill % 4 == 3)
    saved = list_checkpoints(folder / "killed")
    steps = _STEPS_AFTERWARDS + (int(saved[0].name.removeprefix("step-")) if saved else 0)
    summaries = [run_quietly(with_steps(config, folder / name, steps)) for name in ("killed", "whole")]
    same = summaries[0].weights_sha256 == summaries[1].weights_sha256
    metrics = [_timeless(folder / name) for name in ("killed", "whole")]
    figure = f"{kills} kills, {inside} inside a save, {steps:,} steps: "
    if same and metrics[0] == metrics[1]:
        return Check("kill it any time", True, figure + "the same bits as a run left alone")
    return Check("kill it any time", False, figure + ("other weights" if not same else "other metrics"))


def with_steps(config: Config, run_dir: Path, steps: int) -> Config:
    """`config` in another directory, with another end."""
    return replace_keys(config, {"run_dir": str(run_dir), "train.steps": steps})


def run_quietly(config: Config) -> Summary:
    """Train `config` here, without a word. A signal ends it, and what follows, too."""
    summary = train(config, Console(lambda text: None))
    if summary.exit_code:
        raise KeyboardInterrupt
    return summary


def environment() -> dict[str, str]:
    """This process's environment, in which a child imports this very package."""
    package = str(Path(gpt_cli.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _kill_one(config_file: Path, run_dir: Path, life: float, *, in_save: bool) -> bool:
    """Start training, kill it after `life` seconds of it or inside the next save; whether a save was cut short."""
    starts, left_over = _starts(run_dir), _unfinished(run_dir)
    process = subprocess.Popen(
        [sys.executable, "-m", "gpt_cli", "train", "--config", str(config_file)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + _PATIENCE
        while _starts(run_dir) == starts or (in_save and not _is_held_in_save(process, run_dir, left_over)):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                _, stderr = process.communicate()
                raise UserError(f"a training process did not go on: {stderr.strip()[-500:]}")
            time.sleep(0.0005 if in_save else 0.01)
        if not in_save:
            time.sleep(life)
    finally:
        process.kill()
        process.communicate()
    return not _unfinished(run_dir) <= left_over


def _starts(run_dir: Path) -> int:
    return sum(event["event"] == "started" for event in read_events(run_dir))


def _is_held_in_save(process: subprocess.Popen[str], run_dir: Path, left_over: set[str]) -> bool:
    """True if the trainer stands still in the middle of a save, of which nothing was `left_over` by those before it.

    A save takes a few milliseconds: seen from here it may be over before a kill arrives, so that the trainer is held
    first and looked at again. Where processes cannot be held (Windows), seeing the save has to do.
    """
    if _unfinished(run_dir) <= left_over or process.poll() is not None:
        return False
    if sys.platform == "win32":
        return True
    process.send_signal(signal.SIGSTOP)
    with suppress(ChildProcessError):  # it has ended meanwhile
        os.waitpid(process.pid, os.WUNTRACED)
    if not _unfinished(run_dir) <= left_over:
        return True
    process.send_signal(signal.SIGCONT)
    return False


def _unfinished(run_dir: Path) -> set[str]:
    """The names of checkpoints that are being written, or never were to the end."""
    return {name for name in list_directory(run_dir / "checkpoints") if name.startswith(".tmp-")}


def _timeless(run_dir: Path) -> list[dict[str, float]]:
    return [{key: value for key, value in line.items() if key != "time"} for line in read_metrics(run_dir)]
