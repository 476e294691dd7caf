"""Continuous batching in the thread that owns the engines: sequences queue, join the batch and leave it at any step."""

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
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.text_engine import TextEngine
from gpt_cli.serve.text_sequence import ChoiceDelta, TextSequence, join_deltas
from gpt_cli.terminal.words import plural

if TYPE_CHECKING:
    from gpt_cli.serve.server_metrics import ServerMetrics

_Result = TypeVar("_Result")
_ROUND_SECONDS = 0.025  # target time of a round of steps: bounds the wait to join, and between two deltas
_MAX_STEPS = 32


class DeltaQueue:
    """The deltas of a request's sequences, from the scheduler's thread to the event loop that made the queue."""

    def __init__(self) -> None:
        self.loop, self._deltas, self._available = asyncio.get_running_loop(), list[ChoiceDelta](), asyncio.Event()

    async def get(self) -> list[ChoiceDelta]:
        """Wait for a delta, then return all that have come, joined to one for each sequence."""
        await self._available.wait()
        self._available.clear()
        deltas, self._deltas = self._deltas, []
        return join_deltas(deltas)

    def put(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Add deltas. Call it in the thread of the loop."""
        self._deltas += deltas
        self._available.set()


def _deliver(deliveries: Mapping[DeltaQueue, Sequence[ChoiceDelta]]) -> None:
    """Put deltas into their queues from the scheduler's thread, waking each event loop once."""

    def put(queues: list[DeltaQueue]) -> None:
        for queue in queues:
            queue.put(deliveries[queue])

    for loop in {queue.loop for queue in deliveries}:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(put, [queue for queue in deliveries if queue.loop is loop])


class _StepsPerRound:
    """The number of steps of an engine's next round, chosen so that a round takes about `_ROUND_SECONDS`."""

    def __init__(self) -> None:
        self._steps, self._token_seconds = 1, _ROUND_SECONDS

    def next(self, sequences: int, prompt_tokens: int) -> int:
        """The steps for a round of `sequences`, where those without a first token have `prompt_tokens` together."""
        tokens = _ROUND_SECONDS / self._token_seconds - prompt_tokens
        return max(1, min(int(tokens / sequences), 2 * self._steps, _MAX_STEPS))

    def record(self, seconds: float, steps: int, tokens: int) -> None:
        """Record how long a round of `steps` took that prefilled and generated `tokens`."""
        self._steps, self._token_seconds = steps, max(seconds, 1e-9) / max(1, tokens)


class Scheduler:
    """Generates the queued sequences in batches, first come first served, in a thread of its own that `close` ends."""

    def __init__(self, limits: Limits, metrics: "ServerMetrics") -> None:
        self.limits, self._metrics = limits, metrics
        self._changed = threading.Condition()
        self._queue = deque[TextSequence]()
        self._calls = deque[tuple[Callable[[], Any], Future[Any]]]()
        self._running: list[TextSequence] = []
        self._closing = False
        self._steps_per_round = WeakKeyDictionary[TextEngine, _StepsPerRound]()
        self._sequence_seconds = 1.0  # from submission to finish, a moving average: tells Retry-After
        self._thread = threading.Thread(target=self._run, name="gpt-serve-scheduler", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of sequences in the queue."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """The number of sequences that have a slot."""
        return len(self._running)

    @property
    def alive(self) -> bool:
        """True if the thread runs."""
        return self._thread.is_alive() and not self._closing

    def submit(self, sequences: Sequence[TextSequence]) -> None:
        """Queue all of `sequences`, or none.

        Raises ApiError where the queue cannot hold all: 429 if it may later, 400 if there are more than it ever holds.
        """
        with self._changed:
            if self._closing:
                raise ApiError(503, "the server is ending", headers={"Retry-After": "1"})
            if len(sequences) > (most := max(self.limits.seats, self.limits.queue)):
                message = (
                    f"a request may be of at most {plural(most, 'text')} here, prompts times n, not {len(sequences):,}"
                )
                raise ApiError(400, message, param="n", code="limit_exceeded")
            busy = len(self._queue) + len(self._running) + len(sequences) > self.limits.seats
            if busy and len(self._queue) + len(sequences) > self.limits.queue:
                raise self._overloaded(len(self._queue))
            self._queue.extend(sequences)
            self._changed.notify()

    def call(self, work: Callable[[], _Result]) -> "Future[_Result]":
        """Run `work`, which uses an engine, between two rounds. Raises ApiError 429 where too many calls wait."""
        future: Future[_Result] = Future()
        with self._changed:
            if len(self._calls) >= self.limits.queue:
                raise self._overloaded(len(self._calls))
            self._calls.append((work, future))
            self._changed.notify()
        return future

    def cancel(self, sequences: Sequence[TextSequence]) -> None:
        """Free the slots of `sequences`, whose client is gone, before the next round."""
        with self._changed:
            for sequence in sequences:
                sequence.cancelled = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread. Each unfinished sequence gets a last delta, an error."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _overloaded(self, waiting: int) -> ApiError:
        batches = (len(self._queue) + len(self._running)) / self.limits.seats
        seconds = max(1, math.ceil(batches * self._sequence_seconds))
        message = f"{plural(waiting, 'text')} waiting, of {self.limits.queue:,} that may: try again in {seconds} s"
        return ApiError(429, message, code="queue_full", headers={"Retry-After": str(min(seconds, 3600))})

    def _run(self) -> None:
        while not self._closing:
            with self._changed:
                while not (self._closing or self._queue or self._running or self._calls):
                    self._changed.wait()
                self._end_cancelled_and_late()
                call = self._calls.popleft() if self._calls else None
                joining = self._dequeue()
            if call is not None:
                _run_call(*call)
            for sequence in joining:
                self._run_guarded([sequence], sequence.join_engine)
            for engine in dict.fromkeys(sequence.engine for sequence in self._running):
                batch = [sequence for sequence in self._running if sequence.engine is engine]
                self._run_guarded(batch, lambda engine=engine, batch=batch: self._run_round(engine, batch))  # type: ignore[misc]
        for sequence in (*self._running, *self._queue):
            self._end(sequence, "error")
        for _, future in self._calls:
            future.cancel()

    def _end_cancelled_and_late(self) -> None:
        """End sequences that are cancelled, or past their deadline."""
        now = time.monotonic()
        for sequence in (*self._running, *self._queue):
            if sequence.cancelled or sequence.request.deadline <= now:
                self._end(sequence, "cancelled" if sequence.cancelled else "time")

    def _dequeue(self) -> list[TextSequence]:
        """Move sequences from the queue to the free slots, first come first served. Returns those moved: as many as
        heal about `prompt_step` tokens of prompts, at least one."""
        joining: list[TextSequence] = []
        healing = 0
        while self._queue and len(self._running) < self.limits.seats and healing < self.limits.prompt_step:
            sequence = self._queue.popleft()
            healing += sequence.healing_tokens
            joining.append(sequence)
            self._running.append(sequence)
        return joining

    def _run_round(self, engine: TextEngine, batch: list[TextSequence]) -> None:
        """Run one step of an engine's sequences, or several where steps are quick, until one of them has ended."""
        slots = [sequence.slot for sequence in batch if sequence.slot is not None]
        prompt_tokens = sum(len(sequence.opening.tokens) for sequence in batch if sequence.first_token_at is None)
        steps_per_round = self._steps_per_round.setdefault(engine, _StepsPerRound())
        steps = steps_per_round.next(len(batch), prompt_tokens)
        steps_per_call = 1 if any(slot.single_step for slot in slots) else steps
        started, n_step, n_token = time.monotonic(), 0, 0
        while n_step < steps and (not n_step or all(sequence.unfinished for sequence in batch)):
            batch_tokens = engine.step(slots, steps_per_call, self.limits.prompt_step)
            n_step += steps_per_call
            n_token += sum(map(len, batch_tokens))
            for sequence, new_tokens in zip(batch, batch_tokens, strict=True):
                sequence.append(new_tokens)
                if new_tokens and sequence.first_token_at is None:
                    sequence.first_token_at = time.monotonic()
                    self._metrics.first_token(sequence.first_token_at - sequence.submitted_at)
        now = time.monotonic()
        steps_per_round.record(now - started, n_step, n_token + min(prompt_tokens, n_step * self.limits.prompt_step))
        self._metrics.tokens_generated(n_token)
        deliveries: dict[DeltaQueue, list[ChoiceDelta]] = {}
        for sequence in batch:
            delta = sequence.take_delta()
            if delta is None or sequence.cancelled:
                continue
            deliveries.setdefault(sequence.sink, []).append(delta)
            if delta.finish_reason is not None:
                self._running.remove(sequence)
                self._sequence_seconds += (now - sequence.submitted_at - self._sequence_seconds) / 8
                self._metrics.sequence_finished(delta.finish_reason)
        if deliveries:
            _deliver(deliveries)

    def _end(self, sequence: TextSequence, reason: str) -> None:
        """End a sequence before it is complete. Unless it is cancelled, its last delta has the reason."""
        if sequence in self._running:
            self._running.remove(sequence)
        if sequence in self._queue:
            self._queue.remove(sequence)
        if reason != "cancelled":
            _deliver({sequence.sink: [sequence.abort(reason)]})
        sequence.slot = None  # frees it
        self._metrics.sequence_finished(reason)

    def _run_guarded(self, sequences: Sequence[TextSequence], work: Callable[[], None]) -> None:
        """Run `work`. An exception in it ends these sequences, and not the thread."""
        try:
            work()
        except BaseException:  # a panic of llguidance is no Exception
            traceback.print_exc(file=sys.stderr)
            for sequence in sequences:
                if sequence in self._running:
                    self._end(sequence, "error")


def _run_call(work: Callable[[], Any], future: "Future[Any]") -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
