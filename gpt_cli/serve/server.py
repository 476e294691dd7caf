"""uvicorn: binds, says where it is, drains when it is told to end."""

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from gpt_cli.errors import Notify, RequestError
from gpt_cli.serve.access_control import AccessPolicy
from gpt_cli.serve.app import ServerState, make_app
from gpt_cli.serve.connection import Connection
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import EngineOptions, ModelRegistry

_CONNECTIONS = 1024
_IDLE_SECONDS = 15


class Server(uvicorn.Server):
    """uvicorn, which tells when it answers."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._started()


def bind(host: str, port: int) -> socket.socket:
    """The socket to listen on. Raises RequestError for an address that is taken, or is not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or str(error)
        raise RequestError(
            f"cannot listen on {host}, port {port}: {why.lower()}", hint="--port 0 takes any that is free"
        ) from None
    return listener


async def serve(
    runs: list[Path],
    listener: socket.socket,
    guard: AccessPolicy,
    limits: Limits,
    how: EngineOptions,
    note: Notify,
    *,
    follow: float | None = None,
    drain: float = 30.0,
    started: Callable[[Server], None] = lambda _: None,
) -> None:
    """Answer until SIGTERM or SIGINT, or `should_exit` of the server that `started` is given; then finish what is
    being written, for at most `drain` seconds.

    Raises what opening the first run raises.
    """
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # that a client has left is no warning
    shelf = ModelRegistry(runs, how, note)
    first = await shelf.open_first()
    serving = ServerState(shelf, limits, follow=follow, note=note)
    config = uvicorn.Config(
        make_app(serving, guard),
        log_level="critical",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=max(1, round(drain)),
        limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=1 << 16,
        http=Connection,
    )
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host

    def tell() -> None:
        note(f"{first.name}, step {first.step:,}, {first.engine.name}: http://{shown}:{port}")
        started(server)

    server = Server(config, tell)
    await server.serve([listener])


def run(*arguments: object, **options: object) -> None:
    """`serve`, in an event loop of its own."""
    asyncio.run(serve(*arguments, **options))  # type: ignore[arg-type]
