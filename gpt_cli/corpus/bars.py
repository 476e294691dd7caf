"""Progress on stderr where someone is watching: a bar for each stage of reading a text, a line for other long work."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from tqdm import tqdm

from gpt_cli.corpus.survey import Progress, Stage

_PATIENCE = 0.5  # seconds without a word
_CLEAR = "\r\x1b[K"


@contextmanager
def stage_bars() -> Iterator[Progress]:
    """Yield a function that is told the stage, the bytes done and their total. Without a terminal it shows nothing."""
    bars: dict[Stage, tqdm[Any]] = {}

    def show(stage: Stage, done: int, total: int | None) -> None:
        if stage not in bars:
            for bar in bars.values():
                bar.close()
            bars[stage] = tqdm(
                file=Surviving(sys.stderr),
                desc=stage,
                total=total,
                unit="B",
                unit_scale=True,
                dynamic_ncols=True,
                leave=False,
                disable=None,
            )
        bar = bars[stage]
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        for bar in bars.values():
            bar.close()


class Surviving:
    """A terminal to draw on that may go away: the drawing is lost, the training is not."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write, if anyone is there."""
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush, if anyone is there."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def working(label: str) -> Iterator[None]:
    """Within: a line that says what is done and for how long, each second. Without a terminal it shows nothing."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(label, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(label: str, done: threading.Event) -> None:
    started = time.perf_counter()
    if done.wait(_PATIENCE):
        return
    with suppress(OSError, ValueError):  # a terminal that has gone: nobody is watching
        _tell(label)
        while not done.wait(1.0):
            _tell(f"{label}, {time.perf_counter() - started:.0f} s")
        _tell("")


def _tell(text: str) -> None:
    sys.stderr.write(_CLEAR + text)
    sys.stderr.flush()
