"""A progress bar on stderr, where someone is watching."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt_cli.corpus.scan import Stage, StageProgress


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
def staged_progress() -> "Iterator[StageProgress]":
    """`stage_progress` that can be interrupted.

    Raises Interrupted, once the work has cleaned up, on Ctrl-C and SIGTERM.
    """
    from gpt_cli.terminal.progress import stage_progress

    where = "before anything was read"

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        with stage_progress() as show_bar:

            def show(stage: "Stage", done: int, total: int | None) -> None:
                nonlocal where
                where = f"{stage}, at {done:,} bytes" + ("" if not total else f" of {total:,} ({done / total:.0%})")
                show_bar(stage, done, total)

            yield show
    except KeyboardInterrupt as stop:
        code = 128 + (signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT)
        raise Interrupted(f"stopped while {where}; nothing was written", code) from stop
    finally:
        signal.signal(signal.SIGTERM, previous)
