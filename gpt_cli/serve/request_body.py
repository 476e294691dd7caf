"""Reads a request's body as JSON, within limits of size, time and depth. Refuses strings that are not Unicode text."""

import asyncio
import json
from collections import Counter
from typing import Any

from starlette.requests import ClientDisconnect, Request

from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.limits import Limits

_MAX_DEPTH = 32


async def read_object(request: Request, limits: Limits) -> dict[str, Any]:
    """The JSON object in a request's body. Raises ApiError for anything else."""
    value = parse(await read_body(request, limits))
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    return value


async def read_body(request: Request, limits: Limits) -> bytes:
    """The bytes of the body. Raises ApiError where it is too large, or takes too long."""
    declared = request.headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limits.body:
        raise _too_large(limits)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.body:
                    raise _too_large(limits)
                chunks.append(chunk)
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {limits.body_seconds:g} s") from None
    except ClientDisconnect:
        raise ApiError(400, "the client went away") from None
    return b"".join(chunks)


def parse(data: bytes) -> Any:
    """Parse `data` as JSON in UTF-8.

    Raises ApiError for invalid JSON, a key that is there twice, NaN, infinities and lone surrogates.
    """
    try:
        text = data.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_table)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError:
        raise ApiError(400, "the body has a number that is too long, or none") from None
    _check_nodes(value)
    return value


def _check_nodes(value: Any) -> None:
    """Raise ApiError for deep nesting, and for half a surrogate pair, which is not text."""
    stack = [(value, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > _MAX_DEPTH:
            raise ApiError(400, "the body is nested too deeply")
        if isinstance(node, str):
            if not node.isascii() and any("\ud800" <= character <= "\udfff" for character in node):
                raise ApiError(400, "the body has half a surrogate pair, which is not Unicode text")
        elif isinstance(node, dict):
            stack += [(part, depth + 1) for pair in node.items() for part in pair]
        elif isinstance(node, list):
            stack += [(part, depth + 1) for part in node]


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ApiError(400, f"the body has the key {twice[:50]!r} twice")
    return table


def _refuse_constant(name: str) -> None:
    raise ApiError(400, f"the body is not JSON: {name}")


def _too_large(limits: Limits) -> ApiError:
    return ApiError(413, f"the body is larger than {limits.body:,} bytes", code="body_too_large")
