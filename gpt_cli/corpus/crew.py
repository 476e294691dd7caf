"""Processes that read ranges of files: this one, and others of `range_worker`."""

import json
import queue
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from gpt_cli.corpus.pool import launch, was_ended
from gpt_cli.corpus.range_worker import Reader
from gpt_cli.corpus.threads import side_by_side
from gpt_cli.files.disk import DiskError

_IN_FLIGHT = 8  # requests for each process, so that this one need not wait until the others have started


@dataclass(frozen=True)
class Range:
    """Bytes of a file, from a character to another, or the newline that follows a file which has none."""

    file: int
    path: Path
    start: int
    end: int
    characters: int = 0
    is_newline: bool = False

    @property
    def bytes(self) -> int:
        """How many it has."""
        return 1 if self.is_newline else self.end - self.start


class Crew:
    """Those who read. None is started before it is needed; leaving it, also by an exception, ends them."""

    def __init__(self) -> None:
        self._here = Reader(None, 0, "<u2")
        self._others: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """End the processes, at once: what they have written means nothing unless all is."""
        for worker in self._others:
            worker.kill()  # and a thread that waits for its answer wakes up
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for worker in self._others:
            with suppress(OSError):  # what is buffered for a process that has ended
                worker.communicate()
        self._others = []

    def start(self, processes: int) -> None:
        """Have so many, this one included."""
        self._threads = ThreadPoolExecutor(processes)
        self._others = [launch("gpt_cli.corpus.range_worker") for _ in range(processes - 1)]
        for worker in (None, *self._others):
            self._idle.put(worker)

    def tell(self, alphabet: str | None, unknown: int, dtype: np.dtype[Any]) -> None:
        """Say what ids are, as a Reader is told. Raises as `ask` does."""
        kind = dtype.newbyteorder("<").str
        self._here = Reader(alphabet, unknown, kind)
        for worker in self._others:
            _send(worker, {"do": "tell", "alphabet": alphabet, "unknown": unknown, "type": kind})

    def ask(self, requests: Iterable[tuple[Range, dict[str, Any]]]) -> Iterator[tuple[Range, dict[str, Any]]]:
        """Each range with the answer to its request, in order. Raises DiskError, and UserError if one is killed."""
        assert self._threads is not None
        size = 1 + len(self._others)
        for (part, _), answer in side_by_side(self._threads, size, self._answer, requests, _IN_FLIGHT):
            yield part, answer

    def _answer(self, asked: tuple[Range, dict[str, Any]]) -> dict[str, Any]:
        part, request = asked
        request = {"range": [str(part.path), part.start, part.end], **request}
        worker = self._idle.get()
        try:
            answer = self._here.answer(request) if worker is None else _ask(worker, request)
        finally:
            self._idle.put(worker)
        if "error" in answer:
            raise DiskError(answer["error"], hint=answer["hint"])
        return answer


def _ask(worker: "subprocess.Popen[bytes]", request: dict[str, Any]) -> dict[str, Any]:
    _send(worker, request)
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line.endswith(b"\n"):
        raise was_ended(worker)
    answer: dict[str, Any] = json.loads(line)
    return answer


def _send(worker: "subprocess.Popen[bytes]", message: dict[str, Any]) -> None:
    assert worker.stdin is not None
    try:
        worker.stdin.write(json.dumps(message).encode() + b"\n")
        worker.stdin.flush()
    except OSError as error:
        raise was_ended(worker) from error
