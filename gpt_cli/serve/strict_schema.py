"""The base of request schemas: a field that a schema lacks is dropped if it asks for nothing, else refused by name."""

import re
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from gpt_cli.config.removed import SAMPLING, removed_use
from gpt_cli.serve.api_errors import ApiError

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "access_programs": (),
    "annotations": (),
    "audio": (),
    "background": (),
    "background_options": (),
    "best_of": (1,),
    "context_management": (),
    "conversation": (),
    "effort": ("none",),
    "format": ({"type": "text"},),
    "function_call": ("none", "auto"),
    "functions": (),
    "guided_json": (),
    "image": (),
    "include": (),
    "include_obfuscation": (True,),
    "json_schema": (),
    "logprobs": (),
    "max_tool_calls": (),
    "metadata": (),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True,),
    "phase": ("final_answer",),
    "prediction": (),
    "previous_response_id": (),
    "prompt_cache_breakpoint": (),
    "prompt_cache_options": ({"mode": "implicit"},),
    "prompt_cache_retention": ("in_memory",),
    "reasoning": (),
    "reasoning_effort": ("none",),
    "refusal": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (),
    "suffix": (),
    "text": (),
    "tool_calls": (),
    "tool_choice": ("none", "auto"),
    "tools": (),
    "top_logprobs": (0,),
    "truncation": ("auto", "disabled"),
    "use_beam_search": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields of OpenAI's requests, messages and parts that a schema may lack, each with the values that ask for nothing
beside null, false and what is empty: the defaults that OpenAI documents, and what happens here anyway."""


_UNION_MEMBER = re.compile(r"str|constrained-str|[A-Z]\w+|[a-z-]+\[.*", re.DOTALL)
"""The type among several for which pydantic reports an error, in the place of the error."""


def asks_for_nothing(name: str, value: Any) -> bool:
    """True if an answer without the field `name` is the answer to a request that gives it this value."""
    if isinstance(value, dict) and all(asks_for_nothing(inner, part) for inner, part in value.items()):
        return True
    return value is None or value is False or value in ("", []) or value in _UNSUPPORTED.get(name, ())


class StrictSchema(BaseModel):
    """A JSON object of a request. Null is the same as no field; unknown fields are refused, never ignored."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        lacking = _UNSUPPORTED.keys() - cls.model_fields.keys()
        return {
            name: value
            for name, value in content.items()
            if value is not None and not (name in lacking and asks_for_nothing(name, value))
        }

    @classmethod
    def read(cls, content: dict[str, Any]) -> Self:
        """Validate a JSON object. Raises ApiError that names the wrong parameter."""
        for name, value in content.items():
            if name in SAMPLING and (problem := removed_use(name, value)) is not None:
                raise ApiError(400, problem, param=name, code="unsupported_parameter")
        try:
            return cls.model_validate({name: value for name, value in content.items() if name not in SAMPLING})
        except ValidationError as error:
            errors = error.errors(include_url=False, include_input=False, include_context=False)
            first = _first_cause(errors)
            name, *inside = map(str, first["loc"])
            param = ".".join([name, *(part for part in inside if not _UNION_MEMBER.fullmatch(part))])
            raise _validation_error(first["type"], param, first["msg"]) from None


def _first_cause(errors: list[ErrorDetails]) -> ErrorDetails:
    first, *others = errors
    if (wrong_type := next((one for one in errors if one["loc"][-1] == "type"), None)) is not None:
        return wrong_type  # explains what else is wrong in its object
    if first["type"] in ("string_type", "literal_error"):  # or a list or an object, in which something is wrong
        inside_of = first["loc"][:-1]
        depth = len(first["loc"])
        inner = (one for one in others if len(one["loc"]) + (one["type"] == "too_long") > depth)
        return next((other for other in inner if other["loc"][: len(inside_of)] == inside_of), first)
    return first


_ELSEWHERE = {
    "input": ": POST /v1/responses takes it",
    "messages": ": POST /v1/chat/completions takes it",
    "prompt": ": POST /v1/completions takes it",
}


def _validation_error(kind: str, param: str, message: str) -> ApiError:
    if kind == "extra_forbidden" and param.rpartition(".")[2] in _UNSUPPORTED:
        return ApiError(400, f"{param} is not supported here", param=param, code="unsupported_parameter")
    if kind == "extra_forbidden":
        elsewhere = _ELSEWHERE.get(param, "")
        return ApiError(400, f"there is no parameter {param} here{elsewhere}", param=param, code="unknown_parameter")
    if kind == "missing":
        return ApiError(400, f"{param} is missing", param=param, code="missing_parameter")
    colon = "" if kind == "value_error" else ":"
    message = message.removeprefix("Value error, ")
    return ApiError(400, f"{param}{colon} {message}", param=param, code="invalid_parameter")
