"""A process that trains one run after the other, as requested on standard input.

    python -m gpt_cli.search.sweep.worker

A request is a line of JSON, {"name": ..., "config": its YAML}; the reply, when the run has ended, is another.
SIGTERM saves and ends the run. The end of standard input (the parent has exited) saves and ends the process, too; one
that does not come to the end of its step, as of a batch of millions, is ended without.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any, TextIO

from gpt_cli.config import Config, parse_config
from gpt_cli.errors import UserError
from gpt_cli.files import LockedError

_LOCK_TIMEOUT = 120.0  # seconds for the trainer before this one to save and unlock its run
_LOCK_POLL = 0.2


def main() -> int:
    """Train the requested runs until standard input ends; return the exit code."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # other prints are no replies
    requests: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while (line := requests.get()) is not None:
        _reply(replies, _train(json.loads(line)))
    return 0


def _listen(requests: "queue.SimpleQueue[str | None]") -> None:
    for line in sys.stdin:
        requests.put(line)
    requests.put(None)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        os._exit(0)  # nothing is being trained
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LOCK_TIMEOUT)  # a successor waits no longer
    os._exit(1)


def _reply(replies: TextIO, reply: dict[str, Any]) -> None:
    try:
        replies.write(json.dumps(reply) + "\n")
    except OSError:  # the parent is gone
        os._exit(0)


def _train(request: dict[str, Any]) -> dict[str, Any]:
    try:
        config = parse_config(request["config"], request["name"])
        return {"exit_code": _train_when_free(config)}
    except UserError as error:
        return {"error": error.message, "hint": error.suggestion}
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
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            return train(config, Console(_silent)).exit_code
        except LockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_POLL)


def _silent(_: str) -> None:
    """Print nothing: the run's events have it."""


if __name__ == "__main__":
    sys.exit(main())
