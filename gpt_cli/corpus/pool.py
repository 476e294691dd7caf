"""Processes that encode side by side; the ids are the same for any number of them."""

import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.segments import Batch, encode_segments
from gpt_cli.corpus.store import Tokens, token_dtype
from gpt_cli.corpus.worker import read_answer, receive, send_segments, send_tokenizer
from gpt_cli.errors import UserError
from gpt_cli.tokenizer import Tokenizer

Encoded = tuple[Batch, Tokens, npt.NDArray[np.uint32]]
"""A batch, its ids, and how many ids each of its segments has."""

_IN_FLIGHT = 2  # batches for each process, so that none waits for the next one


def encode_batches(
    tokenizer: Tokenizer, batches: Iterable[Batch], processes: int, *, allow_special: bool
) -> Iterator[Encoded]:
    """Each batch with its ids, in order, whatever the number of processes; one encodes in this process.

    Raises what `Tokenizer.encode` raises, and UserError when a process is killed.
    """
    if processes == 1:
        for batch in batches:
            yield batch, *_encode_here(tokenizer, batch, allow_special)
    else:
        with Pool(tokenizer, processes, allow_special) as pool:
            yield from pool.encode(batches)


def _encode_here(tokenizer: Tokenizer, batch: Batch, allow_special: bool) -> tuple[Tokens, npt.NDArray[np.uint32]]:
    texts, followed = [s.text for s in batch.segments], [s.followed for s in batch.segments]
    return encode_segments(tokenizer, texts, followed, allow_special=allow_special)


class Pool:
    """Processes that encode batches side by side. Leaving it, also by an exception, ends them."""

    def __init__(self, tokenizer: Tokenizer, processes: int, allow_special: bool) -> None:
        self._tokenizer = tokenizer
        self._allow_special = allow_special
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._workers = [_start(tokenizer, allow_special) for _ in range(processes)]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for worker in self._workers:
            worker.kill()  # it has nothing to lose; and a thread that waits for its answer wakes up
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            with suppress(OSError):  # what is buffered for a process that has ended
                worker.communicate()

    def encode(self, batches: Iterable[Batch]) -> Iterator[Encoded]:
        """Each batch with its ids, in order."""
        for worker in self._workers:
            self._idle.put(worker)
        window: deque[tuple[Batch, Future[tuple[Tokens, npt.NDArray[np.uint32]]]]] = deque()
        for batch in batches:
            window.append((batch, self._threads.submit(self._encode, batch)))
            if len(window) > _IN_FLIGHT * len(self._workers):
                done, future = window.popleft()
                yield done, *future.result()
        for batch, future in window:
            yield batch, *future.result()

    def _encode(self, batch: Batch) -> tuple[Tokens, npt.NDArray[np.uint32]]:
        worker = self._idle.get()
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            send_segments(worker.stdin, [s.text for s in batch.segments], [s.followed for s in batch.segments])
            answer = receive(worker.stdout)
        except (OSError, EOFError) as error:
            raise UserError(
                f"a process that encodes was ended (exit code {worker.poll()})",
                hint="if memory is short: fewer of them, with --processes 1",
            ) from error
        finally:
            self._idle.put(worker)
        if not answer:
            return _encode_here(self._tokenizer, batch, self._allow_special)  # which raises, and says why
        return read_answer(answer, self._dtype)


def _start(tokenizer: Tokenizer, allow_special: bool) -> "subprocess.Popen[bytes]":
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    one_thread = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    worker = subprocess.Popen(
        [sys.executable, "-m", "gpt_cli.corpus.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **one_thread, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for who started it, and ends it
    )
    assert worker.stdin is not None
    send_tokenizer(worker.stdin, tokenizer, allow_special)
    return worker
