"""Progress on stderr where it is a terminal, removed when the work is done."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn, TextIO

from tqdm import tqdm


@contextmanager
def stage_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a callback (stage, bytes done, total if it is known) that draws a bar for the current stage."""
    with ExitStack() as current:
        bar: tqdm[NoReturn] | None = None
        drawn = ""

        def show(stage: str, done: int, total: int | None) -> None:
            nonlocal bar, drawn
            if bar is None or stage != drawn:
                current.close()
                drawn, bar = stage, current.enter_context(_bar(stage, total=total, unit="B", unit_scale=True))
            bar.total = total
            bar.update(done - bar.n)

        yield show


@contextmanager
def working(label: str) -> Iterator[None]:
    """Show `label` while the block runs."""
    with _bar(label, bar_format="{desc}"):
        yield


def _bar(label: str, **options: Any) -> "tqdm[NoReturn]":
    """A bar that is drawn on a terminal alone and removed when it is closed."""
    stream = BrokenPipeSafeStream(sys.stderr)
    return tqdm(file=stream, desc=label, dynamic_ncols=True, leave=False, disable=None, **options)


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
