"""The kernel's OOM-killer counter. Importing this imports no torch."""

from pathlib import Path

_VMSTAT = Path("/proc/vmstat")  # Linux only


def oom_kill_count() -> int | None:
    """The number of processes that the kernel's OOM killer ended since boot; None where it is unknown."""
    try:
        counters = dict(line.split() for line in _VMSTAT.read_text().splitlines())
        return int(counters["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None
