"""The thread that owns the engines: texts queue for a seat, join a running batch, and leave it, at any token."""

import asyncio
import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from gpt_cli.serve.active_sequence import ActiveSequence, SequenceChunk, join_chunks
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.text_engine import TextEngine

_Result = TypeVar("_Result")
_ROUND = 0.025  # seconds of a round of several steps: how long a newcomer waits, and between two pieces of a text
_MOST_STEPS = 32


class ChunkQueue:
    """The queue of pieces of a request's texts, in the thread of its event loop."""

    def __init__(self) -> None:
        self.loop, self._pieces, self._some = asyncio.get_running_loop(), list[SequenceChunk](), asyncio.Event()

    async def taken(self) -> list[SequenceChunk]:
        """The pieces that came since the last time, at least one: those of a text are joined."""
        await self._some.wait()
        self._some.clear()
        pieces, self._pieces = self._pieces, []
        return join_chunks(pieces)

    def put(self, pieces: Sequence[SequenceChunk]) -> None:
        """Called in the thread of the loop."""
        self._pieces += pieces
        self._some.set()


def _deliver(posts: Mapping[ChunkQueue, Sequence[SequenceChunk]]) -> None:
    """Put pieces into mailboxes from the scheduler's thread: a loop is woken once for all of them."""

    def put(mine: list[ChunkQueue]) -> None:
        for mailbox in mine:
            mailbox.put(posts[mailbox])

    for loop in {mailbox.loop for mailbox in posts}:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(put, [mailbox for mailbox in posts if mailbox.loop is loop])


class _Pace:
    """The number of steps of an engine's rounds, so that these take about `_ROUND` seconds."""

    def __init__(self) -> None:
        self._steps, self._token_seconds = 1, _ROUND

    def steps(self, texts: int, unread: int) -> int:
        """Of the next round, of so many texts, with so many tokens of prompts to be read."""
        tokens = _ROUND / self._token_seconds - unread
        return max(1, min(int(tokens / texts), 2 * self._steps, _MOST_STEPS))

    def took(self, seconds: float, steps: int, tokens: int) -> None:
        """A round of so many tokens read and written."""
        self._steps, self._token_seconds = steps, max(seconds, 1e-9) / max(1, tokens)


class MetricsCallbacks:
    """Callbacks of the scheduler, which `figures` counts."""

    def wrote(self, tokens: int) -> None:
        """So many tokens."""

    def first_token(self, seconds: float) -> None:
        """From its submission to the first token of a text."""

    def ended(self, how: str) -> None:
        """A text: stop, length, time, error or cancelled."""


class Scheduler:
    """Starts its thread when it is made; `close` ends it."""

    def __init__(self, limits: Limits, meter: MetricsCallbacks | None = None) -> None:
        self._limits, self._meter = limits, meter or MetricsCallbacks()
        self._changed = threading.Condition()
        self._queue = deque[ActiveSequence]()
        self._calls = deque[tuple[Callable[[], Any], Future[Any]]]()
        self._lines: list[ActiveSequence] = []
        self._closing = False
        self._paces = WeakKeyDictionary[TextEngine, _Pace]()
        self._text_seconds = 1.0
        self._thread = threading.Thread(target=self._run, name="gpt-serve-scheduler", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Texts in the queue."""
        return len(self._queue)

    @property
    def writing(self) -> int:
        """Texts that have a seat."""
        return len(self._lines)

    @property
    def alive(self) -> bool:
        """True if the thread runs."""
        return self._thread.is_alive() and not self._closing

    def submit(self, lines: Sequence[ActiveSequence]) -> None:
        """Queue these texts. Raises ApiError 429 where the queue has no room for all of them."""
        with self._changed:
            if self._closing:
                raise ApiError(503, "the server is ending", headers={"Retry-After": "1"})
            busy = len(self._queue) + len(self._lines) + len(lines) > self._limits.seats
            if busy and len(self._queue) + len(lines) > self._limits.queue:
                raise self._overloaded()
            self._queue.extend(lines)
            self._changed.notify()

    def call(self, work: Callable[[], _Result]) -> "Future[_Result]":
        """Run `work`, which uses an engine, between two steps. Raises ApiError 429 as `submit` does."""
        future: Future[_Result] = Future()
        with self._changed:
            if len(self._calls) >= self._limits.queue:
                raise self._overloaded()
            self._calls.append((work, future))
            self._changed.notify()
        return future

    def cancel(self, lines: Sequence[ActiveSequence]) -> None:
        """Nobody waits for these any more: their seats are free before the next token."""
        with self._changed:
            for line in lines:
                line.cancelled = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread, with a last piece for every text that is not done."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _overloaded(self) -> ApiError:
        rounds = (len(self._queue) + len(self._lines)) / self._limits.seats
        seconds = max(1, math.ceil(rounds * self._text_seconds))
        message = f"{len(self._queue)} texts are waiting, which is as many as may: try again in {seconds} s"
        return ApiError(429, message, code="queue_full", headers={"Retry-After": str(min(seconds, 3600))})

    def _run(self) -> None:
        while not self._closing:
            with self._changed:
                while not (self._closing or self._queue or self._lines or self._calls):
                    self._changed.wait()
                self._drop()
                call = self._calls.popleft() if self._calls else None
                joining = self._seat()
            if call is not None:
                _do(*call)
            for line in joining:
                self._guarded([line], line.join_engine)
            for engine in dict.fromkeys(line.engine for line in self._lines):
                mine = [line for line in self._lines if line.engine is engine]
                self._guarded(mine, lambda engine=engine, mine=mine: self._advance(engine, mine))  # type: ignore[misc]
        self._finish([*self._lines, *self._queue], "error")
        for _, future in self._calls:
            future.cancel()

    def _drop(self) -> None:
        """Take away whom nobody waits for, and whose time is up."""
        for lines in (self._lines, self._queue):
            for line in [line for line in lines if line.cancelled]:
                lines.remove(line)
                self._meter.ended("cancelled")
        now = time.monotonic()
        if late := [line for line in (*self._lines, *self._queue) if line.deadline <= now]:
            self._finish(late, "time")

    def _seat(self) -> list[ActiveSequence]:
        """Give the free seats to those who wait longest. A text of no tokens takes none."""
        joining: list[ActiveSequence] = []
        while self._queue and len(self._lines) < self._limits.seats:
            line = self._queue.popleft()
            joining.append(line)
            self._lines.append(line)
        return joining

    def _advance(self, engine: TextEngine, lines: list[ActiveSequence]) -> None:
        """A round of the texts of one engine: a step, or several where these are quick."""
        places = [line.place for line in lines if line.place is not None]
        unread = sum(len(line.request.prompt) for line in lines if line.begun is None)
        pace = self._paces.setdefault(engine, _Pace())
        steps = 1 if any(place.single for place in places) else pace.steps(len(lines), unread)
        started = time.monotonic()
        found = engine.step(places, steps, self._limits.prompt_step)
        now = time.monotonic()
        written_tokens = sum(map(len, found))
        pace.took(now - started, steps, written_tokens + min(unread, steps * self._limits.prompt_step))
        self._meter.wrote(written_tokens)
        posts: dict[ChunkQueue, list[SequenceChunk]] = {}
        for line, written in zip(lines, found, strict=True):
            if not written:
                continue
            if line.begun is None:
                line.begun = now
                self._meter.first_token(now - line.submitted)
            piece = line.accept(written)
            if piece is None or line.cancelled:
                continue
            posts.setdefault(line.mailbox, []).append(piece)
            if piece.finish is not None:
                self._lines.remove(line)
                self._text_seconds += (now - line.submitted - self._text_seconds) / 8
                self._meter.ended(piece.finish)
        if posts:
            _deliver(posts)

    def _finish(self, lines: Sequence[ActiveSequence], reason: str) -> None:
        for line in lines:
            if line in self._lines:
                self._lines.remove(line)
            if line in self._queue:
                self._queue.remove(line)
            _deliver({line.mailbox: [line.end(reason)]})
            self._meter.ended(reason)

    def _guarded(self, lines: Sequence[ActiveSequence], work: Callable[[], None]) -> None:
        """Run `work`; an error in it ends these texts, not the thread."""
        try:
            work()
        except Exception:
            traceback.print_exc(file=sys.stderr)
            self._finish([line for line in lines if line in self._lines], "error")


def _do(work: Callable[[], Any], future: "Future[Any]") -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
