"""Threads for work that releases the GIL: hashing, NumPy, writing to the disk.

They cost neither the start of a process nor the transfer of text and ids to it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_PENDING = 4  # queued tasks of one thread, after which `submit` blocks: bounds the memory
_IN_FLIGHT = 2  # tasks for each of several threads, so that none is idle


class SerialExecutor(Protocol):
    """Runs tasks one at a time, in order."""

    def submit(self, task: Callable[..., Any], *args: Any) -> None:
        """Run `task(*args)`, now or later. Raises what this or an earlier task raises."""

    def wait(self) -> None:
        """Return when all tasks are done. Raises what a task raises."""


class InlineExecutor:
    """Runs each task in the calling thread."""

    def submit(self, task: Callable[..., Any], *args: Any) -> None:
        task(*args)

    def wait(self) -> None:
        """Return at once: no task is pending."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ThreadedExecutor:
    """Runs tasks in one thread, in order. An exception in its context drops the tasks that have not begun."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._pending: deque[Future[Any]] = deque()

    def submit(self, task: Callable[..., Any], *args: Any) -> None:
        """Queue `task(*args)`; blocks while the queue is full."""
        while len(self._pending) >= _MAX_PENDING:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(task, *args))

    def wait(self) -> None:
        while self._pending:
            self._pending.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=kind is not None)  # waits for the running task
        if kind is None:
            self.wait()


def serial_executor(workers: int) -> ThreadedExecutor | InlineExecutor:
    """A thread if there is more than one worker, else the calling thread."""
    return ThreadedExecutor() if workers > 1 else InlineExecutor()


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
