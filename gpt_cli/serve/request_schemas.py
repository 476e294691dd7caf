"""Schemas of request bodies: the fields that each path takes."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, FiniteFloat, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from gpt_cli.sampling.sampling_params import SamplingOptions, off_as_none, range_problem
from gpt_cli.serve.strict_schema import StrictSchema

_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_OPTION_OF = dict.fromkeys(_LENGTHS, "max_new_tokens")  # OpenAI's names
_Text = Annotated[str, Field(max_length=100_000)]
_Stop = Annotated[str, Field(min_length=1, max_length=1000)]
_Penalty = Annotated[FiniteFloat, Field(ge=-2, le=2)]
_Bias = Annotated[FiniteFloat, Field(ge=-100, le=100)]


class StreamOptions(StrictSchema):
    """Options of a stream."""

    include_usage: bool = False


class SamplingFields(StrictSchema):
    """Fields that all requests for text share. None: the value of the run's config.

    A sampling option has the range that `SamplingParams` gives it, and is off as on the command line.
    """

    model: str | None = None
    temperature: FiniteFloat | None = None
    top_p: FiniteFloat | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=16)] | None = None
    seed: int | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: Annotated[dict[str, _Bias], Field(max_length=1024)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    """These three only label a request. They are ignored: the server records nothing about its clients."""
    top_k: int | None = None
    min_p: FiniteFloat | None = None
    repetition_penalty: FiniteFloat | None = None
    no_repeat_ngram: int | None = None
    min_new_tokens: int | None = None
    regex: Annotated[str, Field(max_length=2000)] | None = None
    choices: Annotated[list[_Stop], Field(min_length=1, max_length=100)] | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _empty_stop_is_none(cls, value: Any) -> Any:
        return [] if value == "" else value

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

    @property
    def length_field(self) -> str:
        """The field by which the request bounds the new tokens."""
        own = [name for name in _LENGTHS if name in type(self).model_fields]
        return next((name for name in own if getattr(self, name) is not None), own[-1])


class GenerationFields(SamplingFields):
    """Fields that completions and chat share."""

    max_tokens: int | None = None
    n: int | None = Field(None, ge=1)


class CompletionRequest(GenerationFields):
    """`POST /v1/completions`."""

    prompt: Any = ""
    """A text, a list of texts, tokens, or a list of those."""
    heal: bool | None = None
    echo: bool | None = None
    parse_special: bool | None = None
    """True if a text may name special tokens, as in llama.cpp."""
    logprobs: int | None = Field(None, ge=0)


class Part(StrictSchema):
    """A part of a message."""

    type: Literal["text", "input_text", "output_text"]
    text: _Text


def _check_content(value: str | list[Part] | None, info: ValidationInfo) -> str | list[Part]:
    if value is None and info.data.get("role") != "assistant":
        raise PydanticKnownError("missing")
    return value or ""


_Role = Literal["system", "developer", "user", "assistant"]
_Content = Annotated[
    _Text | Annotated[list[Part], Field(max_length=100)] | None,
    Field(validate_default=True),
    AfterValidator(_check_content),
]


class Turn(StrictSchema):
    """A message with its role."""

    role: _Role
    content: _Content = None

    @property
    def text(self) -> str:
        content = self.content or ""
        return content if isinstance(content, str) else "".join(part.text for part in content)


class Message(Turn):
    """A turn of a chat."""

    name: str | None = None


class ChatRequest(GenerationFields):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=500)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)


class InputItem(Turn):
    """A message of the input of `POST /v1/responses`, also as an earlier answer has it."""

    type: Literal["message"] = "message"
    id: str | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None


class ResponseRequest(SamplingFields):
    """`POST /v1/responses`."""

    input: _Text | Annotated[list[InputItem], Field(min_length=1, max_length=500)]
    instructions: _Text | None = None
    max_output_tokens: int | None = None

    @property
    def messages(self) -> list[Turn]:
        """The instructions, if there are any, and the input."""
        system = [Turn(role="system", content=self.instructions)] if self.instructions else []
        return system + ([Turn(role="user", content=self.input)] if isinstance(self.input, str) else list(self.input))


class TokenizeRequest(StrictSchema):
    """`POST /tokenize`."""

    model: str | None = None
    text: str
    parse_special: bool | None = None


class DetokenizeRequest(StrictSchema):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


class AttentionRequest(StrictSchema):
    """`POST /attention`. Layers and heads count from 0, as in `gpt attention`."""

    model: str | None = None
    text: str
    layer: int = Field(0, ge=0)
    head: int = Field(0, ge=0)


class ScoreRequest(StrictSchema):
    """`POST /score`."""

    model: str | None = None
    text: str
    parse_special: bool | None = None
    top_logprobs: int = Field(0, ge=0)
