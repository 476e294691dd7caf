"""A progress bar for each stage of reading a text, with MB/s and the time left, on stderr where someone is watching."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from tqdm import tqdm

from gpt_cli.corpus.survey import Progress, Stage


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
