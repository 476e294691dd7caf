"""Errors in the shape that OpenAI's clients read: {"error": {"message", "type", "param", "code"}}."""

import json
import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from gpt_cli.errors import RequestError, UserError
from gpt_cli.terminal.escape import escape_control_chars

_MAX_MESSAGE = 500  # characters of a message, which may quote the request
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class AsciiJSONResponse(JSONResponse):
    """JSON in ASCII, which holds any text, even half a surrogate pair."""

    def render(self, content: Any) -> bytes:
        return dumps(content).encode("ascii")


def dumps(content: Any) -> str:
    """Compact JSON in ASCII."""
    return _ENCODER.encode(content)


class ApiError(Exception):
    """An error answer, with its HTTP status. `param` is the name of the wrong parameter."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.message = escape_control_chars(message[:_MAX_MESSAGE])
        self.headers = dict(headers or {})

    def content(self) -> dict[str, Any]:
        types = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "overloaded_error"}
        default = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {
                "message": self.message,
                "type": types.get(self.status, default),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> AsciiJSONResponse:
        return AsciiJSONResponse(self.content(), self.status, self.headers)


def to_api_error(error: UserError, param: str | None = None) -> ApiError:
    """The answer to an error from outside the server: status 400 for a RequestError, 500 for another.

    `param`: the wrong parameter; None: that with whose name the message begins, if it does.
    """
    named = re.match(r"(?:give )?([a-z_]+)(?: must be|:| of | does not go| or )", error.message)
    hint = error.suggestion
    message = error.message if hint is None or "--" in hint else f"{error.message}; {hint}"
    message = re.sub(r"\bmax_new_tokens\b", "max_tokens", message)  # OpenAI's name
    status = 400 if isinstance(error, RequestError) else 500
    return ApiError(status, message, param=named[1] if param is None and named else param)
