"""Access control in front of every route: API keys, and the allowed values of `Host` and `Origin`.

A page from elsewhere can make a browser send requests to this machine under a domain of its own that it resolves to
127.0.0.1 (DNS rebinding). So `Host` must be an allowed name, and an `Origin`, where there is one, an allowed origin.
"""

import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gpt_cli.errors import RequestError, UserError
from gpt_cli.serve.api_errors import ApiError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PUBLIC_PATHS = frozenset({"/", "/health"})  # need no key: they reveal nothing about a run
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s*]+/?", re.IGNORECASE)
_MAX_KEY_FILE = 1 << 16  # bytes


@dataclass(frozen=True)
class AccessPolicy:
    """The requests that a server answers."""

    hosts: frozenset[str] | None
    """Allowed names in the Host header. None: any."""
    keys: tuple[bytes, ...] = ()
    """API keys, of which a request needs one. Empty: it needs none."""
    origins: tuple[str, ...] = ()

    def check(self, path: str, method: str, headers: Headers) -> None:
        """Raise ApiError for a request that is not allowed."""
        host = headers.get("host", "")
        if self.hosts is not None and _hostname(host) not in self.hosts:
            raise ApiError(403, "this server does not answer to that Host; --allow-host NAME allows it", code="host")
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins and origin not in (f"http://{host}", f"https://{host}"):
            raise ApiError(403, "this server does not answer to that Origin; --allow-origin allows it", code="origin")
        if not self.keys or path in _PUBLIC_PATHS or method == "OPTIONS":
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        bearer = key.strip().encode() if scheme.lower() == "bearer" else b""
        if not any([hmac.compare_digest(bearer, known) for known in self.keys]):  # noqa: C419 - all, in constant time
            raise ApiError(
                401,
                "a key is needed: Authorization: Bearer KEY" if not bearer else "this key is not known",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


class AccessMiddleware:
    """ASGI middleware that checks every request against the policy."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed request on, and answer another with its error."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            if scope["type"] != "http":
                raise ApiError(403, "there are no websockets here")
            self._policy.check(scope["path"], scope["method"], Headers(scope=scope))
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)


def make_access_policy(
    host: str, allowed: Sequence[str], origins: Sequence[str], key_file: Path | None
) -> AccessPolicy:
    """The policy of a server on `host`. Raises RequestError where `host` is not loopback and there are no keys, and for
    what cannot be a Host or an Origin."""
    for name in allowed:
        if not name.strip() or "/" in name or "*" in name:
            hint = f"--allow-host {urlsplit(name).hostname or 'NAME'}"
            raise RequestError(f"a Host is a name without a scheme or a path: not {name!r}", hint=hint)
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            hint = f"--allow-origin https://{origin if re.fullmatch(r'[a-zA-Z0-9.:-]+', origin) else 'example.org'}"
            raise RequestError(f"an Origin is a scheme and a host: not {origin!r}", hint=hint)
    keys = () if key_file is None else read_keys(key_file)
    if not host or "/" in host or "[" in host or host.count(":") == 1:
        raise RequestError(f"{host!r} is no address to listen on", hint="a name or an IP alone: --host 127.0.0.1")
    if not _is_loopback(host) and not keys:
        raise RequestError(
            f"{host} can be reached by others, who would need no key",
            hint="--api-key-file FILE, with a key a line; or stay with --host 127.0.0.1",
        )
    names = frozenset(_hostname(name) for name in (*LOOPBACK, *allowed))
    any_host = not _is_loopback(host) and not allowed
    return AccessPolicy(
        None if any_host else names | {_hostname(host)}, keys, tuple(origin.rstrip("/") for origin in origins)
    )


def _is_loopback(host: str) -> bool:
    """True for an address or a name that other machines cannot reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The keys in a file, one a line. Raises UserError for a file with none, or with what a header cannot hold."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_KEY_FILE + 1)
    except OSError as error:
        raise RequestError(f"cannot read {path}: {(error.strerror or '').lower()}") from None
    hint = "a line for each key, of ASCII letters, digits and signs, without spaces"
    lines = [line.strip() for line in data.splitlines()]
    if not any(lines) or len(data) > _MAX_KEY_FILE:
        problem = "has no key" if not any(lines) else f"is larger than {_MAX_KEY_FILE:,} bytes"
        raise UserError(f"{path} is not a file of keys: it {problem}", hint=hint)
    for number, line in enumerate(lines, start=1):
        if any(not 32 < byte < 127 for byte in line):  # the line itself may be a secret
            raise UserError("this line has a character that no key has", where=f"{path}:{number}", hint=hint)
    return tuple(filter(None, lines))


def _hostname(host: str) -> str:
    """`host` without its port and brackets, in small letters."""
    host = host.strip().lower().rstrip(".")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]
