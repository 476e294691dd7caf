"""Running out of memory: how it is recognised and told."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpt_cli.errors import UserError


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
