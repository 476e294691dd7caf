"""A process that starts `gpt train` again and again, kills it at random moments, and says what came of it.

    python -m tests.support.kill_loop KILLS SEED < config.yaml      in the directory where the run is to be

torch is imported once and each trainer is a fork of this process: the same verb, the same files and the same SIGKILL
as on a command line, without seconds of imports each time.

A quarter of the kills are inside a save by construction: such a trainer stops at one of the flushes of a save, chosen
at random, and is killed there. The others are killed after a random time. After the last kill the run gets an end six
steps away; then the same training is done undisturbed, in `whole`. Prints the kills, those inside a save, the steps.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path

import torch

from gpt_cli.cli.main import main
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.training import loop

TRAIN = ["train", "--config", "config.yaml"]
FLUSHES_OF_A_SAVE = 8  # 6 files, the directory, its parent


def stop_at_flush(number: int, pipe: int) -> None:
    """From now on, in this process: say so and wait for the end when flush `number` (from 0) of saves is reached."""
    flush, flushes = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal flushes
        if flushes == number:
            os.write(pipe, b"!")
            signal.pause()
        flushes += 1
        flush(descriptor)

    save = loop.checkpoint.save

    def saving(*arguments):
        os.fsync = fsync
        try:
            return save(*arguments)
        finally:
            os.fsync = flush

    loop.checkpoint.save = saving


def start(
    arguments: list[str], prepare: Callable[[int], None] | None = None, log: str = "trainers.log"
) -> tuple[int, int]:
    """A trainer: its process id, and a pipe that ends with it, on which what `prepare` does there may speak.

    It has begun: CPython forgets a SIGINT that reaches a child before `os.fork` has returned there.
    """
    reader, writer = os.pipe()
    begun_reader, begun_writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)
        os.close(begun_reader)
        os.close(begun_writer)
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        if prepare is not None:
            prepare(writer)
        os._exit(main(arguments))
    os.close(writer)
    os.close(begun_writer)
    os.read(begun_reader, 1)
    os.close(begun_reader)
    return child, reader


def end(child: int) -> int:
    """The exit code of a trainer that ended, as shells have it."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 128 - code if code < 0 else code


def kill_and_resume(kills: int, seed: int) -> dict[str, int]:
    """Kill the training of config.yaml `kills` times, then let it come to an end; train it again undisturbed."""
    dice = random.Random(seed)
    inside, longest = 0, warm_up()
    for kill in range(kills):
        in_save = kill % 4 == 3
        prepare = partial(stop_at_flush, dice.randrange(2 * FLUSHES_OF_A_SAVE)) if in_save else None
        child, pipe = start([*TRAIN, "run_dir=killed", "train.steps=1000000"], prepare)
        if in_save:
            inside += len(os.read(pipe, 1))
        else:
            time.sleep(dice.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        os.close(pipe)
        assert end(child) == 128 + signal.SIGKILL, "a trainer ended by itself"
    return {"kills": kills, "inside": inside, "steps": finish("killed")}


def warm_up() -> float:
    """Import what is imported late; how many seconds a life may be long, to end anywhere in a few steps."""
    with open("trainers.log", "w") as log, redirect_stderr(log):
        main([*TRAIN, "run_dir=warm", "train.steps=1"])
    started = time.monotonic()
    end(start([*TRAIN, "run_dir=warm", "train.steps=5"])[0])
    return 2.0 * (time.monotonic() - started)


def finish(run_dir: str) -> int:
    """Let the run in `run_dir` end six steps after its last checkpoint, and train the same undisturbed in `whole`."""
    checkpoints = list_checkpoints(Path(run_dir))
    last = 6 + (int(checkpoints[0].name.removeprefix("step-")) if checkpoints else 0)
    for name in (run_dir, "whole"):
        assert end(start([*TRAIN, f"run_dir={name}", f"train.steps={last}"])[0]) == 0
    return last


def prepare_folder() -> None:
    """Take the config from standard input."""
    torch.set_num_threads(1)
    Path("config.yaml").write_text(sys.stdin.read())


if __name__ == "__main__":
    prepare_folder()
    print(json.dumps(kill_and_resume(int(sys.argv[1]), int(sys.argv[2]))))
