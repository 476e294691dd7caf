"""The process that trains the runs of a sweep, on its own."""

import subprocess
import sys

PROGRAM = """
import signal
import time

from gpt_cli.search.sweep import worker

signal.signal(signal.SIGTERM, lambda *_: None)  # noted, as in a step whose end is waited for
worker._LOCK_TIMEOUT = 0.1
worker._train = lambda request: time.sleep(3600)
worker.main()
"""


def test_a_worker_whose_parent_is_gone_ends_even_in_a_step_without_end() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], input='{"name": "run"}\n', text=True, check=False)

    assert ended.returncode == 1
