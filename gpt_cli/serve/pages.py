"""What only the page at / asks for."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from gpt_cli.serve.app import Serving

ROUTES: list[tuple[str, str, Callable[["Serving", Request], Awaitable[Response]]]] = []
