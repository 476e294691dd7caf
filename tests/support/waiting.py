"""Waiting for other processes: for what they do, never for a time that this should take."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HANG = 600.0  # seconds after which a process is taken to hang; not a bound that any sound machine comes near


def wait_until(happened: Callable[[], object], process: "subprocess.Popen[Any] | None" = None) -> None:
    """Return once `happened` returns something true.

    Raises AssertionError where `process` ended without it, or nothing happened in HANG seconds.
    """
    begun = time.monotonic()
    while not happened():
        ended = process is not None and process.poll() is not None
        assert not ended or happened(), f"the process ended with {process and process.returncode}"
        assert time.monotonic() - begun < HANG, "it hangs"
        time.sleep(0.01)


class Idleness:
    """How often in a row a process was found asleep without having run in between: it waits, however busy the machine.

    Reads `/proc`; where there is none it is never found asleep.
    """

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._seen, self._looks = "", 0

    def looks(self) -> int:
        """Look once more; the number of looks since it last ran."""
        try:
            facts = self._stat.read_text().rpartition(")")[2].split()
        except OSError:
            return 0
        state = " ".join((facts[0], *facts[11:13]))  # user and system time
        self._looks = self._looks + 1 if facts[0] == "S" and state == self._seen else 0
        self._seen = state
        return self._looks
