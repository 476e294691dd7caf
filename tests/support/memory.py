"""The memory that a process of a test took at most."""

import re
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_kilobytes() -> int:
    """Of this process, since it began to run its program.

    Linux' ru_maxrss would count what the process that started it held at that time.
    """
    if _STATUS.exists():
        actual = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
        assert actual
        return int(actual[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak
