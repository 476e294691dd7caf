"""The command `gpt`, and `python -m gpt_cli`: how its process begins and ends."""

import atexit
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 128 + signal.SIGINT  # ExitCode.INTERRUPTED, without an import before signals are handled


def run() -> NoReturn:
    """Do what the arguments of the process ask, and end it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in the background it is ignored, and stays so
        signal.signal(signal.SIGINT, _interrupted)
        sys.unraisablehook = _leave_if_interrupted
    try:
        from gpt_cli.cli.main import main

        code = main()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    fast_exit(code)


def fast_exit(code: int) -> NoReturn:
    """End the process with `code`.

    Exit handlers run and streams are flushed, as when the interpreter ends it, but where torch is loaded, or a thread
    still computes what nobody waits for, modules are not taken apart, which takes a third of a second; and a signal
    ends the process at once with the same code, since the work is done.
    """
    import threading
    from contextlib import suppress

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


def _interrupted(_number: int, frame: FrameType | None) -> NoReturn:
    """Unwind; a second Ctrl-C while that goes on leaves at once, without the traceback that it would end in.

    So does the first one in an import: modules catch what is raised there, or make another exception of it.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            _leave()
        frame = frame.f_back
    raise KeyboardInterrupt


def _leave_if_interrupted(lost: "sys.UnraisableHookArgs") -> None:
    """Leave where a destructor or a callback has lost the exception of a Ctrl-C: the work would go on."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _leave()
    sys.__unraisablehook__(lost)


def _leave() -> NoReturn:
    """End the process, and what it has others do, such as compiling."""
    sys.unraisablehook = lambda _: None
    atexit._run_exitfuncs()
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
