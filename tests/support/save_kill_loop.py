"""A process that saves checkpoints without pause is killed 20 times: what it said was saved must be there.

    python -m tests.support.save_kill_loop RUN

Every other kill comes, by construction, at one of the flushes of a save, the others after a random time. Prints the
last step that was said to be saved, and how many kills came inside a save.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from gpt_cli.run import checkpoint
from tests.support.kill_loop import FLUSHES_OF_A_SAVE, stop_at_flush
from tests.support.tiny_checkpoint import newest, save

if __name__ == "__main__":
    torch.set_num_threads(1)
    run, dice = Path(sys.argv[1]), random.Random(0)
    save(run, 1)
    started = time.perf_counter()
    save(run, 2)
    duration = time.perf_counter() - started
    acknowledged, during_save = 2, 0
    for kill in range(20):
        flush = dice.randrange(2 * FLUSHES_OF_A_SAVE) if kill % 2 else None
        reader, writer = os.pipe()
        held, holds = os.pipe()
        child = os.fork()
        if child == 0:
            step = newest(run)
            if flush is not None:
                stop_at_flush(flush, holds)
            while True:
                step += 1
                save(run, step)
                os.write(writer, step.to_bytes(8, "little"))
                checkpoint.prune(run, keep=1)
        os.close(writer)
        os.close(holds)
        with os.fdopen(reader, "rb") as pipe, os.fdopen(held, "rb") as hold:
            said = b""
            if flush is None:
                said += pipe.read(8)
                time.sleep(dice.uniform(0.0, 3 * duration))
            else:
                assert hold.read(1) == b"!"
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            said += pipe.read()
        acknowledged = int.from_bytes(said[-8:], "little") if said else acknowledged
        unfinished = any(name.startswith(".tmp-") for name in os.listdir(run / "checkpoints"))
        assert flush is None or unfinished == (flush % FLUSHES_OF_A_SAVE != 7)  # the last one is of the parent
        during_save += unfinished and flush is not None
        found = newest(run)
        assert acknowledged <= found <= acknowledged + 1, (acknowledged, found)
    print(acknowledged, during_save)
