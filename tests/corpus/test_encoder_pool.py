"""The pool of encoding processes ends, whatever its workers are doing."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.support.command import subprocess_env
from tests.support.waiting import HANG


def interrupt() -> None:
    """Hold up the thread that reads the results, so that the next one is half sent; interrupt; hold it up again."""
    time.sleep(1)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(1)


class Interruption:
    """A result that calls `interrupt` in the process that reads it."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return interrupt, ()


def long_result() -> bytes:
    """Return more than a pipe holds, when `Interruption` has been sent."""
    time.sleep(0.5)
    return bytes(10_000_000)


PROGRAM = """
from gpt_cli.corpus.encoder_pool import process_pool
from tests.corpus.test_encoder_pool import Interruption, long_result
try:
    with process_pool(2, int) as pool:
        results = [pool.submit(Interruption), pool.submit(long_result)]
        results[1].result()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.robust
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals a thread")
def test_a_pool_that_is_interrupted_while_a_worker_sends_its_result_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=subprocess_env(), timeout=HANG
    )
    assert done.stdout == "interrupted\n", done.stderr
