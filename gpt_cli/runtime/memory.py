"""Running out of memory: how it is recognised and told, and what the operating system says of its own killing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from gpt_cli.errors import UserError

_VMSTAT = Path("/proc/vmstat")  # Linux only


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory is exhausted, in the words of whichever allocator raised it."""
    text = str(error)
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "out of memory" in text or "DefaultCPUAllocator" in text


@contextmanager
def enough_memory(doing: str, hint: str) -> Iterator[None]:
    """Within: running out of memory is a UserError that says while `doing` what, with this way out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"out of memory while {doing}", hint=hint) from error


def count_memory_kills() -> int | None:
    """How many processes the kernel has killed for want of memory since it started; None where it does not say."""
    try:
        counters = dict(line.split() for line in _VMSTAT.read_text().splitlines())
        return int(counters["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None
