"""The command `gpt`, and `python -m gpt_cli`."""

import os
import signal
from types import FrameType
from typing import NoReturn

from gpt_cli.errors import ExitCode


def run() -> NoReturn:
    """Do what the arguments of the process ask, and end it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in the background it is ignored, and stays so
        signal.signal(signal.SIGINT, _interrupted)
    try:
        from gpt_cli.cli.main import main

        code = main()
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    from gpt_cli.cli.process import fast_exit

    fast_exit(code)


def _interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
    """Unwind; a second Ctrl-C while that goes on leaves at once, without the traceback that it would end in."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(ExitCode.INTERRUPTED))
    raise KeyboardInterrupt


if __name__ == "__main__":
    run()
