"""The process of a verb: torch imported without garbage collection, and work unwound by Ctrl-C and SIGTERM."""

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from gpt_cli.cli.output import note


@contextmanager
def gc_paused() -> Iterator[None]:
    """Import torch, unless it has been, and keep the garbage collector off meanwhile.

    The half million objects of its modules stay. Looking through them again and again takes a sixth of their import,
    and a while each time later, so they are set apart for good.
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


class SigTerm(KeyboardInterrupt):
    """SIGTERM, which unwinds as Ctrl-C does, so that nothing half-made is left."""


def exit_code_of(stop: KeyboardInterrupt) -> int:
    """The exit code of a process that Ctrl-C or SIGTERM ended."""
    return 128 + (signal.SIGTERM if isinstance(stop, SigTerm) else signal.SIGINT)


@contextmanager
def unwind_on_sigterm() -> Iterator[None]:
    """Raise SigTerm on SIGTERM."""

    def terminate(*_: object) -> None:
        raise SigTerm

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def interruptible_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """`stage_progress` of work that Ctrl-C and SIGTERM end, once it has cleaned up, with a note of where it was."""
    from gpt_cli.terminal.progress import stage_progress

    position = "before anything was read"
    try:
        with unwind_on_sigterm(), stage_progress() as show_bar:

            def show(stage: str, done: int, total: int | None) -> None:
                nonlocal position
                position = f"{stage}, at {done:,} bytes" + ("" if not total else f" of {total:,} ({done / total:.0%})")
                show_bar(stage, done, total)

            yield show
    except KeyboardInterrupt as stop:
        note(f"stopped while {position}; nothing was written")
        raise typer.Exit(exit_code_of(stop)) from stop
