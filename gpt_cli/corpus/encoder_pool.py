"""Parallel encoding; the ids are the same for any number of workers.

BPE is encoded in processes. Characters and bytes are looked up by NumPy in threads: it releases the GIL, and takes less
time than sending the text to a process would.
"""

import os
import queue
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpt_cli.corpus.encode_worker import parse_reply, receive, send_segments, send_tokenizer
from gpt_cli.corpus.executors import ordered_map
from gpt_cli.corpus.segments import Batch, encode_segments
from gpt_cli.corpus.store import Tokens, token_dtype
from gpt_cli.errors import UserError
from gpt_cli.tokenizer import BPETokenizer, ForeignTokenizer, Tokenizer
from gpt_cli.tokenizer.vocab_stats import Counts, count_ids


class EncodedBatch(NamedTuple):
    ids: Tokens
    lengths: npt.NDArray[np.uint32]
    """(segments,) number of ids of each segment."""
    counts: Counts
    """(vocab_size,) how often each id occurs."""


def encode_batches(
    tokenizer: Tokenizer, batches: Iterable[Batch], workers: int, *, allow_special: bool
) -> Iterator[tuple[Batch, EncodedBatch]]:
    """Each batch with its ids, in order. With one worker this thread encodes.

    Raises as `Tokenizer.encode` does, and UserError when a worker process dies.
    """
    if workers == 1:
        for batch in batches:
            yield batch, _encode_batch(tokenizer, batch, allow_special)
    elif isinstance(tokenizer, BPETokenizer | ForeignTokenizer):
        with EncoderPool(tokenizer, workers, allow_special) as pool:
            yield from pool.encode(batches)
    else:
        threads = ThreadPoolExecutor(workers)
        try:
            yield from ordered_map(threads, workers, lambda b: _encode_batch(tokenizer, b, allow_special), batches)
        finally:
            threads.shutdown(cancel_futures=True)


def _encode_batch(tokenizer: Tokenizer, batch: Batch, allow_special: bool) -> EncodedBatch:
    texts, append_eot = [s.data for s in batch.segments], [s.append_eot for s in batch.segments]
    part_start = [s.part_start for s in batch.segments]
    encoded = encode_segments(tokenizer, texts, append_eot, part_start, allow_special=allow_special)
    return _with_counts(tokenizer, *encoded)


def _with_counts(tokenizer: Tokenizer, ids: Tokens, lengths: npt.NDArray[np.uint32]) -> EncodedBatch:
    return EncodedBatch(ids, lengths, count_ids(ids, tokenizer.vocab_size))


class EncoderPool(AbstractContextManager["EncoderPool"]):
    """Processes that encode batches in parallel; they are killed when the context exits."""

    def __init__(self, tokenizer: Tokenizer, processes: int, allow_special: bool) -> None:
        self._tokenizer = tokenizer
        self._allow_special = allow_special
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._workers = [_start_worker(tokenizer, allow_special) for _ in range(processes)]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(processes)

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()  # it holds no state, and a thread that waits for its reply wakes up
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            with suppress(OSError):  # flushing to a process that has ended
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
            send_segments(worker.stdin, batch.segments)
            reply = receive(worker.stdout)
        except (OSError, EOFError) as error:
            raise worker_died(worker) from error
        finally:
            self._idle.put(worker)
        if not reply:
            return _encode_batch(self._tokenizer, batch, self._allow_special)  # raises the error
        return _with_counts(self._tokenizer, *parse_reply(reply, self._dtype))


def _start_worker(tokenizer: Tokenizer, allow_special: bool) -> "subprocess.Popen[bytes]":
    worker = spawn_worker("gpt_cli.corpus.encode_worker")
    assert worker.stdin is not None
    send_tokenizer(worker.stdin, tokenizer, allow_special)
    return worker


def spawn_worker(module: str) -> "subprocess.Popen[bytes]":
    """Start a single-threaded process that runs a module of this package, with pipes as standard input and output."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    one_thread = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **one_thread, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C goes to the parent, which ends it
    )


def worker_died(worker: "subprocess.Popen[bytes]") -> UserError:
    with suppress(subprocess.TimeoutExpired):
        worker.wait(1)  # the pipes close shortly before the exit code is there
    return UserError(
        f"a process that encodes was ended (exit code {worker.poll()})",
        hint="if memory is short: fewer of them, with --processes 1",
    )
