"""Schemas of request bodies: the fields that each path takes."""

from typing import Annotated, Any

from pydantic import Field, FiniteFloat, ValidationInfo, field_validator

from gpt_cli.sampling.sampling_params import SamplingOptions, off_as_none, range_problem
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.strict_schema import StrictSchema

_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_OPTION_OF = dict.fromkeys(_LENGTHS, "max_new_tokens")  # OpenAI's names
_Stop = Annotated[str, Field(min_length=1, max_length=1000)]
_Penalty = Annotated[FiniteFloat, Field(ge=-2, le=2)]
_Pattern = Annotated[str, Field(max_length=2000)]
_Choices = Annotated[list[_Stop], Field(min_length=1, max_length=100)]
_Schema = dict[str, Any] | str
_Bias = Annotated[FiniteFloat, Field(ge=-100, le=100)]


class StreamOptions(StrictSchema):
    """Options of a stream."""

    include_usage: bool = False


class StructuredOutputs(StrictSchema):
    """Constraints on a text, as vLLM groups them."""

    json_schema: _Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: _Pattern | None = None
    choice: _Choices | None = None
    grammar: str | None = None


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
    regex: _Pattern | None = None
    choices: _Choices | None = None
    guided_json: _Schema | None = None
    guided_regex: _Pattern | None = None
    guided_choice: _Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    """These five as vLLM names them."""

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
        if (constraint := self.constraint()) is not None:
            _, value, option = constraint
            values[option] = value
        return {name: values[name] for name in SamplingOptions.__annotations__ if name in values}

    def constraint(self) -> tuple[str, Any, str] | None:
        """(field, value, option) of the one that constrains the text; None: none does. Raises ApiError for several."""
        grouped = self.structured_outputs or StructuredOutputs(json=None)
        asked = [
            ("choices", self.choices, "choices"),
            ("regex", self.regex, "regex"),
            ("guided_json", self.guided_json, "json_schema"),
            ("guided_regex", self.guided_regex, "regex"),
            ("guided_choice", self.guided_choice, "choices"),
            ("guided_grammar", self.guided_grammar, "grammar"),
            ("structured_outputs.json", grouped.json_schema, "json_schema"),
            ("structured_outputs.json_object", {"type": "object"} if grouped.json_object else None, "json_schema"),
            ("structured_outputs.regex", grouped.regex, "regex"),
            ("structured_outputs.choice", grouped.choice, "choices"),
            ("structured_outputs.grammar", grouped.grammar, "grammar"),
            *self.text_format(),
        ]
        given = [(field, value, option) for field, value, option in asked if value is not None]
        if len(given) > 1:
            raise ApiError(400, f"give {given[0][0]} or {given[1][0]}, not both", param=given[0][0])
        return given[0] if given else None

    def text_format(self) -> list[tuple[str, Any, str]]:
        """(field, value, option) of OpenAI's field for a format, if the path has one and the request gives it."""
        return []

    @property
    def wants_usage(self) -> bool:
        """True if a stream ends with the number of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

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
