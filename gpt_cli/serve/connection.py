"""An HTTP connection with timeouts for a client that does not send a request's head, or stops reading answers."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """uvicorn's connection, closed where a head takes `head_seconds`, or writing stalls for `stalled_seconds`."""

    head_seconds = 30.0
    stalled_seconds = 60.0
    _head_timer: asyncio.TimerHandle | None = None
    _stalled_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_head_timer()
        elif self._head_timer is None and self.timeout_keep_alive_task is None:
            self._start_head_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_timer = self.loop.call_later(self.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
            self._stalled_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
        super().connection_lost(exc)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
