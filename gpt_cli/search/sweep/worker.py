"""A process that trains one run after the other, as it is told on standard input.

    python -m gpt_cli.search.sweep.worker

A line of JSON asks for a run, {"name": ..., "config": its YAML}, and a line of JSON answers when it has ended. SIGTERM
ends the run, saved. The end of standard input, which comes when the process that asked is gone, ends all, saved, too.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TextIO

from gpt_cli.config import Config, parse_config
from gpt_cli.errors import UserError
from gpt_cli.files import LockedError

_PATIENCE = 120.0  # seconds for the trainer before this one to save and let go of its run
_BETWEEN = 0.2


def main(around: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()) -> int:
    """Train what is asked for until nobody asks any more; returns the exit code. A run is trained in `around(name)`."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints does not answer
    requests: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while (line := requests.get()) is not None:
        request = json.loads(line)
        with around(request["name"]):
            answer = _train(request)
        _answer(answers, answer)
    return 0


def _listen(requests: "queue.SimpleQueue[str | None]") -> None:
    for line in sys.stdin:
        requests.put(line)
    requests.put(None)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        os._exit(0)  # nothing is being trained
    os.kill(os.getpid(), signal.SIGTERM)


def _answer(answers: TextIO, answer: dict[str, Any]) -> None:
    try:
        answers.write(json.dumps(answer) + "\n")
    except OSError:  # nobody waits for it
        os._exit(0)


def _train(request: dict[str, Any]) -> dict[str, Any]:
    try:
        config = parse_config(request["config"], request["name"])
        return {"exit_code": _train_when_free(config)}
    except UserError as error:
        return {"error": error.message, "hint": error.hint}
    except MemoryError as error:
        return {"error": f"out of memory: {error}"}
    except (OSError, RuntimeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}


def _train_when_free(config: Config) -> int:
    from gpt_cli.search.lr_range_test import with_proposed_lr
    from gpt_cli.training.console import Console
    from gpt_cli.training.loop import train

    if config.optim.lr == "auto":
        config = with_proposed_lr(config, _silent)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return train(config, Console(_silent)).exit_code
        except LockedError:
            if time.monotonic() > until:
                raise
            time.sleep(_BETWEEN)


def _silent(_: str) -> None:
    """Say nothing: the run's events tell it."""


if __name__ == "__main__":
    sys.exit(main())
