"""A progress bar on stderr, where someone is watching."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt_cli.corpus.survey import Progress


@contextmanager
def progress_bar(label: str, unit: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function that is told how much is done of how much in all, if that is known.

    Without a terminal it shows nothing.
    """
    from tqdm import tqdm

    with tqdm(desc=label, unit=unit, unit_scale=True, dynamic_ncols=True, leave=False, disable=None) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


class Interrupted(Exception):  # noqa: N818 (nobody's error)
    """Ctrl-C or SIGTERM ended the work, which left nothing; `message` says where it was."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which unwinds as Ctrl-C does, so that nothing half-made is left."""


@contextmanager
def staged_progress() -> "Iterator[Progress]":
    """Yield a function that is told the stage, the bytes done and their total: a bar for each stage, with MB/s.

    Raises Interrupted, once the work has cleaned up, on Ctrl-C and SIGTERM.
    """
    from tqdm import tqdm

    bars: dict[str, tqdm[Any]] = {}
    where = "before anything was read"

    def show(stage: str, done: int, total: int | None) -> None:
        nonlocal where
        where = f"{stage}, at {done:,} bytes" + ("" if total is None else f" of {total:,} ({done / total:.0%})")
        if stage not in bars:
            for bar in bars.values():
                bar.close()
            bars[stage] = tqdm(desc=stage, unit="B", unit_scale=True, dynamic_ncols=True, leave=False, disable=None)
        bar = bars[stage]
        bar.total = total
        bar.update(done - bar.n)

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield show
    except KeyboardInterrupt as stop:
        code = 128 + (signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT)
        raise Interrupted(f"stopped while {where}; nothing was written", code) from stop
    finally:
        signal.signal(signal.SIGTERM, previous)
        for bar in bars.values():
            bar.close()
