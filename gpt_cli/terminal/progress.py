"""Progress on stderr if it is a terminal: a bar per stage, or a line with the elapsed time."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from tqdm import tqdm

DELAY = 0.5  # seconds before the first line
_CLEAR = "\r\x1b[K"


@contextmanager
def stage_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a callback (stage, bytes done, total bytes) that draws one bar per stage; without a terminal, nothing."""
    bars: dict[str, tqdm[Any]] = {}

    def show(stage: str, done: int, total: int | None) -> None:
        if stage not in bars:
            for bar in bars.values():
                bar.close()
            bars[stage] = _bar(stage, total)
        bar = bars[stage]
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        for bar in bars.values():
            bar.close()


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback (bytes done, total if it is known) that draws a progress bar; without a terminal, nothing."""
    with _bar(label) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


def _bar(label: str, total: int | None = None) -> "tqdm[Any]":
    """A bar on stderr that is removed when it is closed; without a terminal it draws nothing."""
    return tqdm(
        file=BrokenPipeSafeStream(sys.stderr), desc=label, total=total, unit="B", unit_scale=True,
        dynamic_ncols=True, leave=False, disable=None,
    )  # fmt: skip


class BrokenPipeSafeStream:
    """A stream that ignores write errors, so that a closed terminal does not end the training."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def working(label: str) -> Iterator[None]:
    """Context manager that shows `label` and the elapsed seconds on a terminal."""
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
    if done.wait(DELAY):
        return
    with suppress(OSError, ValueError):  # the terminal is closed
        _rewrite_line(label)
        while not done.wait(1.0):
            _rewrite_line(f"{label}, {time.perf_counter() - started:.0f} s")
        _rewrite_line("")


def _rewrite_line(text: str) -> None:
    sys.stderr.write(_CLEAR + text)
    sys.stderr.flush()
