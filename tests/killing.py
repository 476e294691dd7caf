"""A process that starts `gpt train` again and again, kills it at random moments, and says what came of it.

    python tests/killing.py KILLS SEED < config.yaml      in the directory where the run is to be

torch is imported once and each trainer is a fork of this process: the same verb, the same files and the same SIGKILL
as on a command line, without two seconds of imports each time. Prints a JSON object: kills, those inside a save,
processes, and the exit code of the last.

A quarter of the kills are inside a save by construction: such a trainer stops at one of the flushes of a save, chosen
at random, and is killed there. The others die after a random time, or earlier if they finish.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from gpt_cli.cli.main import main
from gpt_cli.training import loop, summary  # noqa: F401 - imported here, once, for all trainers

FLUSHES_OF_A_SAVE = 11  # 3 logs, 6 files, the directory, its parent


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
    """Train config.yaml to its end in spite of `kills` kills, and say how it went."""
    dice = random.Random(seed)
    arguments = ["train", "--config", "config.yaml"]
    done = inside = processes = 0
    code = 137
    started = time.monotonic()
    end(start([*arguments, "run_dir=warm", "train.steps=4"], None)[0])
    longest = 1.2 * (time.monotonic() - started)
    while code == 137:
        processes += 1
        in_save = done < kills and done % 4 == 3
        flush = dice.randrange(3 * (FLUSHES_OF_A_SAVE - 3)) if in_save else None
        child, pipe = start(arguments, flush)
        if in_save:
            os.read(pipe, 1)
        elif done < kills:
            time.sleep(dice.uniform(0.0, longest))
        if done < kills:
            os.kill(child, signal.SIGKILL)
        os.close(pipe)
        code = end(child)
        done += code == 137
        inside += any(path.name.startswith(".tmp-") for path in Path("run/checkpoints").glob(".*"))
    return {"kills": done, "inside": inside, "processes": processes, "code": code}


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path("config.yaml").write_text(sys.stdin.read())
    print(json.dumps(kill_and_resume(int(sys.argv[1]), int(sys.argv[2]))))
