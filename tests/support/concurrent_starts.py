"""A process that starts `gpt train` many times at once on one run directory, and says how each start ended.

    python -m tests.support.concurrent_starts STARTS < config.yaml      in the directory where the run is to be

All trainers wait for one moment. One of them trains, until the others have ended and it is asked to stop; meanwhile
the run is sampled. Then the run ends, and is done again undisturbed in `whole`. What trainer N says is in `said-N`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from gpt_cli.run.checkpoint import list_checkpoints
from tests.support.kill_loop import TRAIN, end, finish, prepare_folder, start, warm_up


def start_at_once(starts: int) -> dict[str, list[int]]:
    """The exit codes of the trainers but the one that trained, of that one, and of a sample taken while it did."""
    warm_up()
    gate, opened = os.pipe()

    def wait_for_all(_said: int) -> None:
        os.close(opened)
        os.read(gate, 1)  # nothing is ever written: it returns when the parent closes its end

    arguments = [*TRAIN, "run_dir=shared", "train.steps=1000000"]
    running = {start(arguments, wait_for_all, f"said-{number}")[0] for number in range(starts)}
    os.close(opened)
    refused = []
    while len(running) > 1:
        child, status = os.wait()
        running.remove(child)
        refused.append(os.waitstatus_to_exitcode(status))
    (trainer,) = running
    while not list_checkpoints(Path("shared")):
        time.sleep(0.01)
    sampled = end(start(["sample", "--run", "shared", "--max-new-tokens", "3"])[0])
    os.kill(trainer, signal.SIGTERM)
    trained = end(trainer)
    finish("shared")
    return {"refused": refused, "trained": [trained], "sampled": [sampled]}


if __name__ == "__main__":
    prepare_folder()
    print(json.dumps(start_at_once(int(sys.argv[1]))))
