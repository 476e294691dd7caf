"""The bytes of a request as JSON: bounded in size, time and depth, and nothing in it that is not text."""

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.limits import Limits

_DEEPEST = 32


async def read_object(request: Request, limits: Limits) -> dict[str, Any]:
    """The JSON object that a request holds. Raises ApiError for anything else."""
    value = parse(await read_body(request, limits))
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    return value


async def read_body(request: Request, limits: Limits) -> bytes:
    """All of the body. Raises ApiError where it is too large, or takes too long."""
    told = request.headers.get("content-length", "0")
    if told.isascii() and told.isdigit() and int(told[:20]) > limits.body:
        raise _too_large(limits)
    pieces, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for piece in request.stream():
                size += len(piece)
                if size > limits.body:
                    raise _too_large(limits)
                pieces.append(piece)
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {limits.body_seconds:g} s") from None
    except ClientDisconnect:
        raise ApiError(400, "the client went away") from None
    return b"".join(pieces)


def parse(data: bytes) -> Any:
    """`data` as JSON in UTF-8. Raises ApiError for what is not, and for numbers and text that JSON does not know."""
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError:
        raise ApiError(400, "the body has a number that is too long, or none") from None
    _check(value)
    return value


def _check(value: Any) -> None:
    """Raise ApiError for deep nesting, and for half a surrogate pair, which is not text."""
    todo = [(value, 0)]
    while todo:
        one, depth = todo.pop()
        if depth > _DEEPEST:
            raise ApiError(400, "the body is nested too deeply")
        if isinstance(one, str):
            if not one.isascii() and any("\ud800" <= character <= "\udfff" for character in one):
                raise ApiError(400, "the body has half a surrogate pair, which is not Unicode text")
        elif isinstance(one, dict):
            todo += [(part, depth + 1) for pair in one.items() for part in pair]
        elif isinstance(one, list):
            todo += [(part, depth + 1) for part in one]


def _refuse_constant(name: str) -> None:
    raise ApiError(400, f"the body is not JSON: {name}")


def _too_large(limits: Limits) -> ApiError:
    return ApiError(413, f"the body is larger than {limits.body:,} bytes", code="body_too_large")
