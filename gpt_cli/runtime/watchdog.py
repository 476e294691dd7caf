"""A process that hangs says where, and ends: a scheduler can start it again, a person can see what it waited for."""

import faulthandler
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watchdog(minutes: float | None) -> Iterator[Callable[[], None]]:
    """Yield a function to call at least every `minutes`.

    When it is not, all stacks go to stderr and the process exits with code 1. It
    works even while a thread that hangs holds the interpreter's lock. With None nothing is watched.
    """
    if minutes is None:
        yield lambda: None
        return
    try:
        yield lambda: faulthandler.dump_traceback_later(60.0 * minutes, exit=True)
    finally:
        faulthandler.cancel_dump_traceback_later()
