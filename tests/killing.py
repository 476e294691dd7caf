"""A process that starts `gpt train` again and again, kills it at random moments, and says what came of it.

    python tests/killing.py KILLS SEED < config.yaml      in the directory where the run is to be

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
from contextlib import redirect_stderr
from pathlib import Path

import torch

from gpt_cli.cli.main import main
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.training import loop

FLUSHES_OF_A_SAVE = 8  # 6 files, the directory, its parent


def stop_at_flush(number: int, said: int) -> None:
    """From now on, in this process: say so and wait for the end when flush `number` (from 0) of saves is reached."""
    flush, seen = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal seen
        if seen == number:
            os.write(said, b"!")
            signal.pause()
        seen += 1
        flush(descriptor)

    save = loop.checkpoint.save

    def saving(*arguments):
        os.fsync = fsync
        try:
            return save(*arguments)
        finally:
            os.fsync = flush

    loop.checkpoint.save = saving


def start(arguments: list[str], flush: int | None) -> tuple[int, int]:
    """A trainer: its process id, and a pipe that ends with it and speaks when it waits to be killed."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)
        log = os.open("trainers.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if flush is not None:
            stop_at_flush(flush, writer)
        os._exit(main(arguments))
    os.close(writer)
    return child, reader


def end(child: int) -> int:
    """The exit code of a trainer that ended, as shells have it."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 128 - code if code < 0 else code


def kill_and_resume(kills: int, seed: int) -> dict[str, int]:
    """Kill the training of config.yaml `kills` times, then let it come to an end; train it again undisturbed."""
    dice = random.Random(seed)
    arguments = ["train", "--config", "config.yaml"]
    inside = 0
    with open("trainers.log", "w") as log, redirect_stderr(log):
        main([*arguments, "run_dir=warm", "train.steps=1"])  # imports what is imported late
    started = time.monotonic()
    end(start([*arguments, "run_dir=warm", "train.steps=5"], None)[0])
    longest = 2.0 * (time.monotonic() - started)
    for kill in range(kills):
        in_save = kill % 4 == 3
        flush = dice.randrange(2 * FLUSHES_OF_A_SAVE) if in_save else None
        child, pipe = start([*arguments, "run_dir=killed", "train.steps=1000000"], flush)
        if in_save:
            inside += len(os.read(pipe, 1))
        else:
            time.sleep(dice.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        os.close(pipe)
        assert end(child) == 128 + signal.SIGKILL, "a trainer ended by itself"
    steps = list_checkpoints(Path("killed"))
    last = int(steps[0].name.removeprefix("step-")) + 6
    for run_dir in ("killed", "whole"):
        assert end(start([*arguments, f"run_dir={run_dir}", f"train.steps={last}"], None)[0]) == 0
    return {"kills": kills, "inside": inside, "steps": last}


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path("config.yaml").write_text(sys.stdin.read())
    print(json.dumps(kill_and_resume(int(sys.argv[1]), int(sys.argv[2]))))
