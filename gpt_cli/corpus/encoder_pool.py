"""Work beside the main thread: threads where the GIL is released, processes where Python computes.

BPE is encoded in processes. Characters and bytes are looked up by NumPy in threads: it releases the GIL, and takes less
time than sending the text to a process would. The ids are the same for any number of workers.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from gpt_cli.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_PENDING = 4  # queued tasks of one thread, after which `submit` blocks: bounds the memory
_THREADS = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_IN_FLIGHT = 2  # tasks for each of several workers, so that none is idle


class SerialExecutor(AbstractContextManager["SerialExecutor"]):
    """Runs tasks one at a time, in order: in a thread if there is more than one worker, else in the calling thread.

    An exception in its context drops the tasks that have not begun.
    """

    def __init__(self, workers: int = 1) -> None:
        self._thread = ThreadPoolExecutor(1) if workers > 1 else None
        self._pending: deque[Future[Any]] = deque()

    def submit(self, task: Callable[..., Any], *args: Any) -> None:
        """Run `task(*args)`, now or later; blocks while the queue is full. Raises what this or an earlier task does."""
        if self._thread is None:
            task(*args)
            return
        while len(self._pending) >= _MAX_PENDING:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(task, *args))

    def wait(self) -> None:
        """Return when all tasks are done. Raises what a task raises."""
        while self._pending:
            self._pending.popleft().result()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=kind is not None)  # waits for the running task
        if kind is None:
            self.wait()


@contextmanager
def process_pool(processes: int, initializer: Callable[..., None], *arguments: Any) -> Iterator[Executor]:
    """Start processes that call `initializer(*arguments)` once. They leave Ctrl-C to this process, and end with it.

    The arguments are small: those of more than 64 KiB would have each start wait until the process before is ready.
    Raises UserError, in its context, if one of them dies.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of NumPy and torch half
    all_started = context.Event()
    pool = ProcessPoolExecutor(processes, context, _begin_worker, (all_started, initializer, arguments))
    try:
        try:
            with _starting_workers():
                for _ in range(processes):
                    pool.submit(int)  # starts a process, as none is idle before all have started
        finally:
            all_started.set()
        yield pool
    except BrokenProcessPool as error:
        raise UserError("a process that encodes was ended from outside: is there too little memory?") from error
    finally:
        # Waits for the tasks that workers have: killed while it sends a result, one would have us wait for the rest.
        pool.shutdown(cancel_futures=True)


@contextmanager
def thread_pool(threads: int) -> Iterator[Executor]:
    """Start threads. An exception in the context drops the tasks that have not begun."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def ordered_map(
    submit: Callable[[Item], Future[Result]], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, its result) in order, with at most _IN_FLIGHT items per worker pending. Raises as the work does."""
    window: deque[tuple[Item, Future[Result]]] = deque()
    for item in items:
        window.append((item, submit(item)))
        if len(window) > _IN_FLIGHT * workers:
            oldest, future = window.popleft()
            yield oldest, future.result()
    for item, future in window:
        yield item, future.result()


@contextmanager
def _starting_workers() -> Iterator[None]:
    """Have new processes ignore Ctrl-C, compute in one thread each, and not import `__main__`.

    `multiprocessing` has them import it to find what is defined there; nothing of ours is, and a script may lack the
    guard that this needs.
    """
    main, variables = sys.modules["__main__"], {name: os.environ.get(name) for name in _THREADS}
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ |= dict.fromkeys(_THREADS, "1")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else set()
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in variables.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin_worker(all_started: Any, initializer: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    all_started.wait()
    initializer(*arguments)


def _end_with_parent() -> None:
    """End this process where its parent was killed: it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
