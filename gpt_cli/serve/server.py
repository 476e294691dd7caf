"""Runs uvicorn: binds the socket, prints the address, and drains running requests at the end."""

import asyncio
import errno
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
from gpt_cli.terminal.escape import escape_control_chars

_CONNECTIONS = 1024
_IDLE_SECONDS = 15


class Server(uvicorn.Server):
    """uvicorn's server, with a callback for when it accepts connections."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, then call `started`."""
        await super().startup(sockets)
        self._started()


def bind(host: str, port: int) -> socket.socket:
    """The socket to listen on. Raises RequestError for an address that is in use, or not of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        of_host = isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL
        hint = "name an address of this machine: --host 127.0.0.1" if of_host else "--port 0 takes any that is free"
        raise RequestError(f"cannot listen on {host}, port {port}: {reason.lower()}", hint=hint) from None
    return listener


async def serve(
    runs: list[Path],
    listener: socket.socket,
    policy: AccessPolicy,
    limits: Limits,
    options: EngineOptions,
    note: Notify,
    *,
    follow: float | None = None,
    drain: float = 30.0,
    started: Callable[[Server], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM, SIGINT, or `should_exit` of the server that `started` is called with; then finish running
    requests, for at most `drain` seconds.

    Raises what opening the first run raises.
    """
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every client that disconnects
    registry = ModelRegistry(runs, options, note)
    first = await registry.open_first()
    state = ServerState(registry, limits, follow=follow, note=note)
    config = uvicorn.Config(
        make_app(state, policy),
        log_level="critical",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=drain,  # type: ignore[arg-type]  # a float, as asyncio takes it
        limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=1 << 16,
        http=Connection,
    )
    host, port = listener.getsockname()[:2]
    url_host = f"[{host}]" if ":" in host else host

    def announce() -> None:
        note(f"{first.name}, step {first.step:,}, {first.engine.name}: http://{url_host}:{port}")
        if others := [name for name in registry.paths if name != registry.first]:
            note(f"also served: {', '.join(map(escape_control_chars, others))}")
        started(server)

    server = Server(config, announce)
    await server.serve([listener])


def run(*arguments: object, **options: object) -> None:
    """Run `serve` in a new event loop."""
    asyncio.run(serve(*arguments, **options))  # type: ignore[arg-type]
