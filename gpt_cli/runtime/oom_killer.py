"""What the operating system says of its own killing for want of memory. Importing this imports no torch."""

from pathlib import Path

_VMSTAT = Path("/proc/vmstat")  # Linux only


def oom_kill_count() -> int | None:
    """How many processes the kernel has killed for want of memory since it started; None where it does not say."""
    try:
        counters = dict(line.split() for line in _VMSTAT.read_text().splitlines())
        return int(counters["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None
