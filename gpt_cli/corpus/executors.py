"""Work beside the thread that reads: hashing, NumPy and writing to the disk let go of the interpreter's lock.

So threads share it out without what processes cost: to start them, and to hand text and ids over.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_WAITING = 4  # pieces of work that one thread is given before it is waited for, which bounds the memory
_IN_FLIGHT = 2  # pieces of work for each of several, so that none waits for the next one


class SerialExecutor(Protocol):
    """Runs tasks one at a time, in order."""

    def submit(self, work: Callable[..., Any], *given: Any) -> None:
        """Run `work(*given)`, now or later. Raises what this or an earlier task raises."""

    def wait(self) -> None:
        """Return when all tasks are done. Raises what a task raises."""


class InlineExecutor:
    """Does what it is given before it goes on."""

    def submit(self, work: Callable[..., Any], *given: Any) -> None:
        work(*given)

    def wait(self) -> None:
        """Nothing is ever left to do."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ThreadedExecutor:
    """A thread that does what it is given, in order. Left by an exception it drops what has not begun."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._pending: deque[Future[Any]] = deque()

    def submit(self, work: Callable[..., Any], *given: Any) -> None:
        """Queue the call of `work`; blocks while the queue is full."""
        while len(self._pending) >= _WAITING:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(work, *given))

    def wait(self) -> None:
        while self._pending:
            self._pending.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=kind is not None)  # one that is writing is waited for
        if kind is None:
            self.wait()


def serial_executor(workers: int) -> ThreadedExecutor | InlineExecutor:
    """A thread of its own, unless all work is to be done by one."""
    return ThreadedExecutor() if workers > 1 else InlineExecutor()


def ordered_map(
    threads: ThreadPoolExecutor,
    workers: int,
    work: Callable[[Item], Result],
    items: Iterable[Item],
    in_flight: int = _IN_FLIGHT,
) -> Iterator[tuple[Item, Result]]:
    """Each of `items` with what `work` makes of it, in order, a few of them at a time. Raises what `work` raises."""
    window: deque[tuple[Item, Future[Result]]] = deque()
    for item in items:
        window.append((item, threads.submit(work, item)))
        if len(window) > in_flight * workers:
            done, future = window.popleft()
            yield done, future.result()
    for item, future in window:
        yield item, future.result()
