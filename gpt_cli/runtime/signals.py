"""Signals as a request to finish: the first one asks, the second one leaves at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_ASKING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
_HANGUP = getattr(signal, "SIGHUP", None)


class StopRequest:
    """The signal that has asked the run to stop, if any has: `received` by this process, or `signal`, known to all."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.signal: int | None = None

    @property
    def exit_code(self) -> int | None:
        """128 plus the signal, as shells have it; None while nothing asked."""
        return None if self.signal is None else 128 + self.signal


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Defer SIGINT, SIGTERM, SIGUSR1 and SIGHUP: the first is noted, a second one ends the process.

    SIGHUP comes when a terminal goes away. Where it is ignored (`nohup`), it stays so.
    """
    request = StopRequest()

    def note(number: int, _frame: FrameType | None) -> None:
        if request.received is not None:
            # The newest checkpoint is whole: saving is atomic. A print could wait for a lock that was held.
            with suppress(OSError):
                os.write(2, b"stopped at once, by a second signal; what was saved before it is whole\n")
            os._exit(128 + number)
        request.received = number
        if os.environ.get("RANK", "0") == "0":  # one process of several
            with suppress(OSError):
                os.write(2, b"\nto be stopped after this step, and saved; a second signal ends it at once\n")

    asking = [n for n in _ASKING if not (n == _HANGUP and signal.getsignal(n) is signal.SIG_IGN)]
    previous = {number: signal.signal(number, note) for number in asking}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
