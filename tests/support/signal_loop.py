"""A process that starts `gpt train` again and again, and asks it to stop by a signal at a random moment.

    python -m tests.support.signal_loop SIGNALS SEED < config.yaml      in the directory where the run is to be

Half of the signals come after a random time, from outside. The others come, by construction, inside an evaluation, a
sample, a save (at one of its flushes), or a step, the first one of the process included; a quarter of these twice,
which means: leave at once. See kill_loop.py for how trainers are started, and for the run they are compared with.

Prints how many signals there were, how many came while a checkpoint was being saved, how many came twice, and the
steps.
"""

import json
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.training import loop
from gpt_cli.training.device_tokens import DeviceTokens
from tests.support.kill_loop import FLUSHES_OF_A_SAVE, TRAIN, end, finish, prepare_folder, start, warm_up

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
PHASES: dict[str, tuple[Any, str]] = {
    "evaluation": (DeviceTokens, "span"),
    "sample": (loop, "sample_text"),
    "save": (os, "fsync"),
    "step": (loop, "train_step"),
}


def signal_inside(phase: str, call: int, number: int, times: int, pipe: int) -> None:
    """From now on, in this process: raise signal `number` so many `times` in call `call` (from 0) of that phase."""
    module, name = PHASES[phase]
    original, n_calls = getattr(module, name), 0

    def signalled(*arguments: Any, **named: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == call + 1:
            os.write(pipe, b"!")
            for _ in range(times):
                signal.raise_signal(number)
        return original(*arguments, **named)

    setattr(module, name, signalled)


def signal_and_resume(signals: int, seed: int) -> dict[str, int]:
    """Stop the training of config.yaml `signals` times, then let it come to an end; train it again undisturbed."""
    dice = random.Random(seed)
    longest, in_save, twice = warm_up(), 0, 0
    for count in range(signals):
        number = dice.choice(ASKING)
        arguments = [*TRAIN, "run_dir=signalled", "train.steps=1000000"]
        if count % 2:
            phase = list(PHASES)[count // 2 % len(PHASES)]
            times = 2 if count // 8 % 4 == 3 - count // 2 % 4 else 1  # a quarter, each phase in its turn
            call = dice.randrange(2 * FLUSHES_OF_A_SAVE if phase == "save" else 3)
            leaves = times == 2 and phase == "step"  # at once, and at its first step: before it could save anything
            saved = list_checkpoints(Path("signalled"))
            child, pipe = start(arguments, partial(signal_inside, phase, 0 if leaves else call, number, times))
            assert os.read(pipe, 1) == b"!", "the trainer ended by itself"
            in_save += phase == "save"
            twice += times - 1
        else:
            leaves = False
            child, pipe = start(arguments)
            time.sleep(dice.uniform(0.0, longest))
            os.kill(child, number)
        code = end(child)
        os.close(pipe)
        assert code == 128 + number, f"signal {number} was answered with exit code {code}"
        if leaves:
            assert list_checkpoints(Path("signalled")) == saved, "a second signal was not answered at once"
    return {"signals": signals, "in_save": in_save, "twice": twice, "steps": finish("signalled")}


if __name__ == "__main__":
    for asking in ASKING:  # `nohup` and `&` make some of them ignored, which a trainer would respect
        signal.signal(asking, signal.default_int_handler if asking == signal.SIGINT else signal.SIG_DFL)
    prepare_folder()
    print(json.dumps(signal_and_resume(int(sys.argv[1]), int(sys.argv[2]))))
