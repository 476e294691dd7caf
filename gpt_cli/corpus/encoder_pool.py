"""Encoding side by side; the ids are the same for any number of workers.

BPE is encoded in processes. Characters and bytes are looked up by NumPy, which lets go of the interpreter's lock, in
less time than it takes to hand them to another process: in threads.
"""

import os
import queue
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.encode_worker import read_answer, receive, send_segments, send_tokenizer
from gpt_cli.corpus.executors import ordered_map
from gpt_cli.corpus.segments import Batch, encode_segments
from gpt_cli.corpus.store import Tokens, token_dtype
from gpt_cli.errors import UserError
from gpt_cli.tokenizer import BPETokenizer, Tokenizer
from gpt_cli.tokenizer.vocab_stats import Counts, count_ids


class EncodedBatch(NamedTuple):
    ids: Tokens
    lengths: npt.NDArray[np.uint32]
    """(segments,) how many ids each of its segments has."""
    counts: Counts
    """(vocab_size,) how often each id occurs."""


def encode_batches(
    tokenizer: Tokenizer, batches: Iterable[Batch], workers: int, *, allow_special: bool
) -> Iterator[tuple[Batch, EncodedBatch]]:
    """Each batch with its ids, in order, whatever the number of workers; a single one encodes in this thread.

    Raises what `Tokenizer.encode` raises, and UserError when a process is killed.
    """
    if workers == 1:
        for batch in batches:
            yield batch, _encode_here(tokenizer, batch, allow_special)
    elif isinstance(tokenizer, BPETokenizer):
        with EncoderPool(tokenizer, workers, allow_special) as pool:
            yield from pool.encode(batches)
    else:
        threads = ThreadPoolExecutor(workers)
        try:
            yield from ordered_map(threads, workers, lambda b: _encode_here(tokenizer, b, allow_special), batches)
        finally:
            threads.shutdown(cancel_futures=True)


def _encode_here(tokenizer: Tokenizer, batch: Batch, allow_special: bool) -> EncodedBatch:
    texts, followed = [s.data for s in batch.segments], [s.append_eot for s in batch.segments]
    return _counted(tokenizer, *encode_segments(tokenizer, texts, followed, allow_special=allow_special))


def _counted(tokenizer: Tokenizer, ids: Tokens, lengths: npt.NDArray[np.uint32]) -> EncodedBatch:
    return EncodedBatch(ids, lengths, count_ids(ids, tokenizer.vocab_size))


class EncoderPool:
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

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()  # it has nothing to lose; and a thread that waits for its answer wakes up
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            with suppress(OSError):  # what is buffered for a process that has ended
                worker.communicate()

    def encode(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, EncodedBatch]]:
        """Each batch with its ids, in order."""
        for worker in self._workers:
            self._idle.put(worker)
        yield from ordered_map(self._threads, len(self._workers), self._encode, batches)

    def _encode(self, batch: Batch) -> EncodedBatch:
        worker = self._idle.get()
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            send_segments(worker.stdin, [s.data for s in batch.segments], [s.append_eot for s in batch.segments])
            answer = receive(worker.stdout)
        except (OSError, EOFError) as error:
            raise worker_died(worker) from error
        finally:
            self._idle.put(worker)
        if not answer:
            return _encode_here(self._tokenizer, batch, self._allow_special)  # which raises, and says why
        return _counted(self._tokenizer, *read_answer(answer, self._dtype))


def _start(tokenizer: Tokenizer, allow_special: bool) -> "subprocess.Popen[bytes]":
    worker = spawn_worker("gpt_cli.corpus.encode_worker")
    assert worker.stdin is not None
    send_tokenizer(worker.stdin, tokenizer, allow_special)
    return worker


def spawn_worker(module: str) -> "subprocess.Popen[bytes]":
    """A process of one thread that runs a module of this package, and is spoken to through pipes."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    one_thread = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **one_thread, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for who started it, and ends it
    )


def worker_died(worker: "subprocess.Popen[bytes]") -> UserError:
    with suppress(subprocess.TimeoutExpired):
        worker.wait(1)  # its pipes close a moment before it has an exit code
    return UserError(
        f"a process that encodes was ended (exit code {worker.poll()})",
        hint="if memory is short: fewer of them, with --processes 1",
    )
