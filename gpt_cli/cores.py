"""The processor cores that the operating system leaves to this process."""

import os


def usable_cores() -> set[int]:
    """Numbers of the logical cores that this process may use; where the system has no affinity, of all."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
