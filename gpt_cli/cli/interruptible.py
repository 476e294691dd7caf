"""Work that Ctrl-C or SIGTERM ends where it is, with a message that says where that was."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt_cli.corpus.scan import Stage, StageProgress


class Interrupted(Exception):  # noqa: N818 (nobody's error)
    """Ctrl-C or SIGTERM ended the work, which left nothing; `message` says where it was."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


class SigTerm(KeyboardInterrupt):
    """SIGTERM, which unwinds as Ctrl-C does, so that nothing half-made is left."""


@contextmanager
def unwind_on_sigterm() -> Iterator[None]:
    """Raise SigTerm on SIGTERM."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise SigTerm

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def interruptible_progress() -> "Iterator[StageProgress]":
    """`stage_progress` that can be interrupted.

    Raises Interrupted, once the work has cleaned up, on Ctrl-C and SIGTERM.
    """
    from gpt_cli.terminal.progress import stage_progress

    position = "before anything was read"
    try:
        with unwind_on_sigterm(), stage_progress() as show_bar:

            def show(stage: "Stage", done: int, total: int | None) -> None:
                nonlocal position
                position = f"{stage}, at {done:,} bytes" + ("" if not total else f" of {total:,} ({done / total:.0%})")
                show_bar(stage, done, total)

            yield show
    except KeyboardInterrupt as stop:
        code = 128 + (signal.SIGTERM if isinstance(stop, SigTerm) else signal.SIGINT)
        raise Interrupted(f"stopped while {position}; nothing was written", code) from stop
