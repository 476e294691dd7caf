"""The process around a verb: quick to start, and quick to end, where torch is part of it."""

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


@contextmanager
def gc_paused() -> Iterator[None]:
    """Import torch, unless it has been, and keep the garbage collector off meanwhile.

    The half million objects that its modules consist of stay. Looking through them again and again while they come
    takes a sixth of their import, and a while again each time later: so they are set apart for good.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def fast_exit(code: int) -> NoReturn:
    """End the process with `code`.

    As the interpreter ends it, with two exceptions: where torch is loaded, or a thread still computes what nobody waits
    for, nothing is taken apart, module by module, which takes a third of a second; and a signal ends it at once, with
    the same code, since the work is done. What is registered to be done at the end is done, and what was printed is
    out.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(code))
    if "torch" not in sys.modules and not any(thread.daemon for thread in threading.enumerate()):
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
