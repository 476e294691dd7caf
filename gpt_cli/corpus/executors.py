"""Threads for work that releases the GIL: hashing, NumPy, writing to the disk.

They cost neither the start of a process nor the transfer of text and ids to it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_PENDING = 4  # queued tasks of one thread, after which `submit` blocks: bounds the memory
_IN_FLIGHT = 2  # tasks for each of several threads, so that none is idle


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


def ordered_map(
    threads: ThreadPoolExecutor,
    workers: int,
    work: Callable[[Item], Result],
    items: Iterable[Item],
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, work(item)) in order, with at most _IN_FLIGHT items per worker pending. Raises as `work` does."""
    window: deque[tuple[Item, Future[Result]]] = deque()
    for item in items:
        window.append((item, threads.submit(work, item)))
        if len(window) > _IN_FLIGHT * workers:
            oldest, future = window.popleft()
            yield oldest, future.result()
    for item, future in window:
        yield item, future.result()
