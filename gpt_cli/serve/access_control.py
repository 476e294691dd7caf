"""Access control: a key, a host that is ours, an origin that is ours. In front of every route.

A page that somebody else wrote can have a browser send requests to this machine, under a name of its own that it points
at 127.0.0.1 (DNS rebinding). So the name in `Host` must be one of ours, and an `Origin`, where there is one, too.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gpt_cli.errors import RequestError, UserError
from gpt_cli.serve.api_errors import ApiError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_OPEN = frozenset({"/", "/health"})  # which hold nothing of a run
_LONGEST = 1 << 16  # bytes of a file of keys


@dataclass(frozen=True)
class AccessPolicy:
    """`hosts`: the names that this server answers to; None: any. `keys`: of which one is needed; none: no key is."""

    hosts: frozenset[str] | None
    keys: tuple[bytes, ...] = ()
    origins: tuple[str, ...] = ()

    def check(self, path: str, method: str, headers: Headers) -> None:
        """Raise ApiError for a request that is not for us."""
        host = headers.get("host", "")
        if self.hosts is not None and _name(host) not in self.hosts:
            raise ApiError(403, "this server does not answer to that Host; --allow-host NAME allows it", code="host")
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins and origin not in (f"http://{host}", f"https://{host}"):
            raise ApiError(403, "this server does not answer to that Origin; --allow-origin allows it", code="origin")
        if not self.keys or path in _OPEN or method == "OPTIONS":
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode() if scheme.lower() == "bearer" else b""
        if not any([hmac.compare_digest(given, known) for known in self.keys]):  # noqa: C419 - all, in constant time
            raise ApiError(
                401,
                "a key is needed: Authorization: Bearer KEY" if not given else "this key is not known",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


class AccessMiddleware:
    """Asks the guard before anything else sees a request, and adds the headers that every answer has."""

    def __init__(self, app: ASGIApp, guard: AccessPolicy) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The request `scope`, answered here or passed on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            if scope["type"] != "http":
                raise ApiError(403, "there are no websockets here")
            self._guard.check(scope["path"], scope["method"], Headers(scope=scope))
        except ApiError as problem:
            await problem.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)


def make_access_policy(
    host: str, allowed: Sequence[str], origins: Sequence[str], key_file: Path | None
) -> AccessPolicy:
    """The guard of a server on `host`. Raises RequestError where one beyond loopback has no key."""
    keys = () if key_file is None else read_keys(key_file)
    if host not in LOOPBACK and not keys:
        raise RequestError(
            f"{host} can be reached by others, who would need no key",
            hint="--api-key-file FILE, with a key a line; or stay with --host 127.0.0.1",
        )
    names = frozenset(_name(name) for name in (*LOOPBACK, *allowed))
    anybody = host not in LOOPBACK and not allowed
    return AccessPolicy(
        None if anybody else names | {_name(host)}, keys, tuple(origin.rstrip("/") for origin in origins)
    )


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The keys in a file, one a line. Raises UserError for a file with none, or with what a header cannot hold."""
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST + 1)
    except OSError as error:
        raise RequestError(f"cannot read {path}: {(error.strerror or '').lower()}") from None
    keys = tuple(line.strip() for line in data.splitlines() if line.strip())
    if not keys or len(data) > _LONGEST or any(not 32 < byte < 127 for key in keys for byte in key):
        raise UserError(f"{path} is not a file of keys", hint="a line for each key, of letters and digits")
    return keys


def _name(host: str) -> str:
    """`host` without its port and brackets, in small letters."""
    host = host.strip().lower().rstrip(".")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]
