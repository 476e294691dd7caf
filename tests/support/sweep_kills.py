"""`gpt sweep` (or `gpt scale`) as a process that is killed again and again, at moments that its runs' logs say.

Half of the kills end the trainers, too, as a power cut would; else they save and leave while the next process starts.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from gpt_cli.run.log import read_metrics
from tests.support.command import subprocess_env
from tests.support.waiting import wait_until

ENVIRONMENT = subprocess_env(OMP_NUM_THREADS="2")


def start(arguments: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    """The command, started in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "gpt_cli", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def logged(home: Path) -> int:
    """Steps that the runs in `home` have logged, all together."""
    return sum(max((line["step"] for line in read_metrics(run)), default=0) for run in home.glob("*-seed=*"))


def trainers(pid: int) -> list[int]:
    """The processes that the process `pid` has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def wait_until_logged(process: "subprocess.Popen[bytes]", home: Path, steps: int) -> None:
    """Return once the runs have logged so many steps."""
    wait_until(lambda: any(home.glob("s*.json")) and logged(home) >= steps, process)


def kill_again_and_again(arguments: list[str], folder: Path, home: Path, kills: int, steps: int, seed: int) -> int:
    """Kill the command so many times before its runs have logged `steps`; how many kills ended trainers, too."""
    dice = random.Random(seed)
    moments = [0, *sorted(dice.randrange(steps) for _ in range(kills - 1))]
    power_cuts = 0
    for number, moment in enumerate(moments):
        process = start(arguments, folder)
        wait_until_logged(process, home, moment)
        children = trainers(process.pid)
        process.send_signal(signal.SIGKILL)
        if number % 2:
            power_cuts += bool(children)
            for child in children:
                os.kill(child, signal.SIGKILL)
        process.communicate()
    return power_cuts
