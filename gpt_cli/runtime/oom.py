"""Memory: how much there is, and how running out of it is recognised and reported."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from gpt_cli.errors import OUT_OF_MEMORY_MESSAGES, UserError


def is_out_of_memory(error: BaseException) -> bool:
    """True if `error` says that memory is exhausted, in the words of whichever allocator raised it."""
    text = str(error)
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or any(message in text for message in OUT_OF_MEMORY_MESSAGES)


@contextmanager
def oom_as_user_error(doing: str, hint: str) -> Iterator[None]:
    """Turn running out of memory while `doing` something into a UserError with this hint."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"out of memory while {doing}", hint=hint) from error


def available_memory(device: torch.device) -> int | None:
    """Bytes that a process could still have on `device`; None where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None
