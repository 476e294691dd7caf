"""Schemas of request bodies. Unknown keys are refused by name, never ignored."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, ValidationInfo, field_validator

from gpt_cli.config.removed import SAMPLING, removed_use
from gpt_cli.sampling.sampling_params import SamplingOptions, off_as_none, range_problem
from gpt_cli.serve.api_errors import ApiError

_UNSUPPORTED = frozenset(
    {
        "audio",
        "best_of",
        "function_call",
        "functions",
        "guided_json",
        "json_schema",
        "metadata",
        "modalities",
        "parallel_tool_calls",
        "prediction",
        "reasoning_effort",
        "response_format",
        "service_tier",
        "store",
        "suffix",
        "tool_choice",
        "tools",
        "use_beam_search",
        "verbosity",
        "web_search_options",
    }
)
_OPTION_OF = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
}  # OpenAI's names
_Text = Annotated[str, Field(max_length=100_000)]
_Stop = Annotated[str, Field(min_length=1, max_length=1000)]
_Penalty = Annotated[FiniteFloat, Field(ge=-2, le=2)]
_Bias = Annotated[FiniteFloat, Field(ge=-100, le=100)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    @classmethod
    def read(cls, content: dict[str, Any]) -> Self:
        """Validate a JSON object. Raises ApiError that names the wrong parameter."""
        for name, value in content.items():
            if name in SAMPLING and (problem := removed_use(name, value)) is not None:
                raise ApiError(400, problem, param=name, code="unsupported_parameter")
        fields_set = {
            name: value
            for name, value in content.items()
            if name not in SAMPLING and (value is not None or name not in _UNSUPPORTED)
        }
        try:
            return cls.model_validate(fields_set)
        except ValidationError as error:
            first, *others = error.errors(include_url=False, include_input=False, include_context=False)
            if first["type"] == "string_type":  # or a list, in which something is wrong
                inside_of = first["loc"][:-1]
                depth = len(first["loc"])
                inner = (one for one in others if len(one["loc"]) + (one["type"] == "too_long") > depth)
                first = next((other for other in inner if other["loc"][: len(inside_of)] == inside_of), first)
            name, *inside = map(str, first["loc"])
            param = ".".join([name, *(part for part in inside if not part.startswith(("list[", "str", "constr")))])
            raise _validation_error(first["type"], param, first["msg"]) from None


_ELSEWHERE = {"messages": ": POST /v1/chat/completions takes it", "prompt": ": POST /v1/completions takes it"}


def _validation_error(kind: str, param: str, message: str) -> ApiError:
    if kind == "extra_forbidden" and param in _UNSUPPORTED:
        return ApiError(400, f"{param} is not supported here", param=param, code="unsupported_parameter")
    if kind == "extra_forbidden":
        elsewhere = _ELSEWHERE.get(param, "")
        return ApiError(400, f"there is no parameter {param} here{elsewhere}", param=param, code="unknown_parameter")
    if kind == "missing":
        return ApiError(400, f"{param} is missing", param=param, code="missing_parameter")
    colon = "" if kind == "value_error" else ":"
    message = message.removeprefix("Value error, ")
    return ApiError(400, f"{param}{colon} {message}", param=param, code="invalid_parameter")


class StreamOptions(_Strict):
    """Options of a stream."""

    include_usage: bool = False


class GenerationFields(_Strict):
    """Fields that completions and chat share. None: the value of the run's config.

    A sampling option has the range that `SamplingParams` gives it, and is off as on the command line.
    """

    model: str | None = None
    max_tokens: int | None = None
    temperature: FiniteFloat | None = None
    top_p: FiniteFloat | None = None
    n: int | None = Field(None, ge=1)
    stop: _Stop | Annotated[list[_Stop], Field(max_length=16)] | None = None
    seed: int | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: Annotated[dict[str, _Bias], Field(max_length=1024)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    """Accepted and ignored: the server records nothing about its clients."""
    top_k: int | None = None
    min_p: FiniteFloat | None = None
    repetition_penalty: FiniteFloat | None = None
    no_repeat_ngram: int | None = None
    min_new_tokens: int | None = None
    regex: Annotated[str, Field(max_length=2000)] | None = None
    choices: Annotated[list[_Stop], Field(min_length=1, max_length=100)] | None = None

    @field_validator("*")
    @classmethod
    def _check_range(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        option = _OPTION_OF.get(name, name)
        if value is None or option not in SamplingOptions.__annotations__:
            return value
        if (problem := range_problem(option, off_as_none(option, value))) is not None:
            raise ValueError(problem)
        return value

    def sampling_options(self) -> dict[str, Any]:
        """The sampling options that are given, by the names of `SamplingParams`."""
        given = {name: value for name, value in self if value is not None}
        values = {_OPTION_OF.get(name, name): value for name, value in given.items()}
        return {name: values[name] for name in SamplingOptions.__annotations__ if name in values}


class CompletionRequest(GenerationFields):
    """`POST /v1/completions`."""

    prompt: Any = ""
    """A text, a list of texts, tokens, or a list of those."""
    heal: bool | None = None
    echo: bool | None = None
    parse_special: bool | None = None
    """True if a text may name special tokens, as in llama.cpp."""
    logprobs: int | None = Field(None, ge=0)


class Part(_Strict):
    """A part of a message."""

    type: Literal["text"]
    text: _Text


class Message(_Strict):
    """A turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: _Text | Annotated[list[Part], Field(max_length=100)]
    name: str | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(GenerationFields):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=500)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)


class TokenizeRequest(_Strict):
    """`POST /tokenize`."""

    model: str | None = None
    text: str
    parse_special: bool | None = None


class DetokenizeRequest(_Strict):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


class AttentionRequest(_Strict):
    """`POST /attention`. Layers and heads count from 0, as in `gpt attention`."""

    model: str | None = None
    text: str
    layer: int = Field(0, ge=0)
    head: int = Field(0, ge=0)


class ScoreRequest(_Strict):
    """`POST /score`."""

    model: str | None = None
    text: str
    parse_special: bool | None = None
    top_logprobs: int = Field(0, ge=0)
