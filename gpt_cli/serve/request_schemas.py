"""Schemas of request bodies: the fields that each path takes."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, FiniteFloat, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from gpt_cli.sampling.sampling_params import SamplingOptions, off_as_none, range_problem
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.strict_schema import StrictSchema
from gpt_cli.serve.tools import CallFormat, Tool, ToolChoice

_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_OPTION_OF = dict.fromkeys(_LENGTHS, "max_new_tokens")  # OpenAI's names
_Text = Annotated[str, Field(max_length=100_000)]
_Stop = Annotated[str, Field(min_length=1, max_length=1000)]
_Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
_Penalty = Annotated[FiniteFloat, Field(ge=-2, le=2)]
_Pattern = Annotated[str, Field(max_length=2000)]
_Choices = Annotated[list[_Stop], Field(min_length=1, max_length=100)]
_Schema = dict[str, Any] | str
_Bias = Annotated[FiniteFloat, Field(ge=-100, le=100)]


class StreamOptions(StrictSchema):
    """Options of a stream."""

    include_usage: bool = False


class StructuredOutputs(StrictSchema):
    """What constrains a text, as vLLM groups it."""

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
        values = {_OPTION_OF.get(name, name): value for name, value in given.items()} | self._constraint()
        return {name: values[name] for name in SamplingOptions.__annotations__ if name in values}

    def _constraint(self) -> dict[str, Any]:
        """The one option that constrains the text, whatever the field that asks for it. Raises ApiError for several."""
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
            raise ApiError(400, f"give {given[0][0]} or {given[1][0]}, not both", param=given[1][0])
        return {option: value for _, value, option in given}

    def text_format(self) -> list[tuple[str, Any, str]]:
        """(field, value, option) of OpenAI's field for a format, if the path has one and the request gives it."""
        return []

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

    def spell(self, form: CallFormat) -> str:
        """The text with the calls in it, if there are any, in their format."""
        return self.text


class CalledFunction(StrictSchema):
    """The function of a call."""

    name: _Name
    arguments: _Text


class PastCall(StrictSchema):
    """A call in an earlier answer."""

    type: Literal["function"] = "function"
    id: str | None = None
    function: CalledFunction


class Message(Turn):
    """A turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]  # type: ignore[assignment]
    name: str | None = None
    tool_calls: Annotated[list[PastCall], Field(max_length=100)] | None = None
    tool_call_id: str | None = None

    def spell(self, form: CallFormat) -> str:
        calls = [form.write(call.function.name, call.function.arguments) for call in self.tool_calls or ()]
        return "\n".join([*([self.text] if self.text else []), *calls])


class FunctionDefinition(StrictSchema):
    """A function that the model may call."""

    name: _Name
    description: _Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Ignored: arguments are always valid under the schema."""


class FunctionTool(StrictSchema):
    """A tool of a request."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(StrictSchema):
    """A function by its name."""

    name: _Name


class NamedTool(StrictSchema):
    """The tool that an answer has to call."""

    type: Literal["function"]
    function: FunctionName


class JsonSchema(StrictSchema):
    """The schema of a `response_format`. Its name and description tell the model nothing here."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ChatTextFormat(StrictSchema):
    """A `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def _format_schema(kind: str, schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """The JSON schema of a text format; None: any text."""
    if kind == "json_schema" and schema is None:
        raise ApiError(400, "the format json_schema has no schema", param="schema", code="missing_parameter")
    return None if kind == "text" else {"type": "object"} if kind == "json_object" else schema


class ChatRequest(GenerationFields):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=500)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    response_format: ChatTextFormat | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    def text_format(self) -> list[tuple[str, Any, str]]:
        if (form := self.response_format) is None:
            return []
        schema = _format_schema(form.type, form.json_schema.schema_ if form.json_schema else None)
        return [("response_format", schema, "json_schema")]

    def tool_use(self) -> ToolChoice | None:
        """The tools that the answer may call; None: none. Raises ApiError."""
        tools = {tool.function.name: tool for tool in self.tools or ()}
        named = self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else None
        if len(tools) < len(self.tools or ()):
            raise ApiError(400, "tools: two have one name", param="tools")
        if named is not None and named not in tools:
            raise ApiError(400, f"tool_choice: there is no tool {named} in tools", param="tool_choice")
        if self.tool_choice == "required" and not tools:
            raise ApiError(400, "tool_choice needs tools", param="tool_choice")
        if self.tool_choice == "none" or not tools:
            return None
        return ToolChoice(
            [Tool(name, tool.function.parameters or {}) for name, tool in tools.items() if named in (None, name)],
            required=named is not None or self.tool_choice == "required",
            parallel=named is None and self.parallel_tool_calls is not False,
            described=[tool.model_dump(exclude_none=True) for tool in tools.values()],
        )


class InputItem(Turn):
    """A message of the input of `POST /v1/responses`, also as an earlier answer has it."""

    type: Literal["message"] = "message"
    id: str | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None


class ResponseTextFormat(StrictSchema):
    """The format of `text`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseText(StrictSchema):
    """Options of the text of a response."""

    format: ResponseTextFormat | None = None


class ResponseRequest(SamplingFields):
    """`POST /v1/responses`."""

    text: ResponseText | None = None
    input: _Text | Annotated[list[InputItem], Field(min_length=1, max_length=500)]
    instructions: _Text | None = None
    max_output_tokens: int | None = None

    def text_format(self) -> list[tuple[str, Any, str]]:
        if self.text is None or (form := self.text.format) is None:
            return []
        return [("text.format", _format_schema(form.type, form.schema_), "json_schema")]

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
