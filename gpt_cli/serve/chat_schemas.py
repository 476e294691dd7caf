"""Schemas of chats: messages, formats of the answer, tools, and the two requests that have them."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_serializer
from pydantic_core import PydanticKnownError

from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.request_schemas import GenerationFields, SamplingFields
from gpt_cli.serve.strict_schema import StrictSchema
from gpt_cli.serve.tools import CallFormat, Tool, ToolChoice

_Text = Annotated[str, Field(max_length=100_000)]
_Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
_Parsed = Annotated[Any, Field(exclude=True)]  # what OpenAI's clients read in a text that they send back; ignored


class Part(StrictSchema):
    """A part of a message."""

    type: Literal["text", "input_text", "output_text"]
    text: _Text
    parsed: _Parsed = None


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


class Message(StrictSchema):
    """A turn of a chat."""

    role: _Role
    content: _Content = None
    name: str | None = None

    @property
    def text(self) -> str:
        content = self.content or ""
        return content if isinstance(content, str) else "".join(part.text for part in content)

    def spell(self, form: CallFormat) -> str:
        """The text with the calls in it, if there are any, in their format."""
        return self.text

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that a chat template reads besides role and content, as Transformers has it."""
        return self.model_dump(exclude_none=True, include={"name", "tool_calls", "tool_call_id"})


class CalledFunction(StrictSchema):
    """The function of a call."""

    name: _Name
    arguments: _Text
    parsed_arguments: _Parsed = None

    @field_serializer("arguments")
    def _parse(self, arguments: str) -> Any:
        """The object that `arguments` spells, if it does: a chat template writes it as JSON."""
        try:
            return json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments


class PastCall(StrictSchema):
    """A call in an earlier answer."""

    type: Literal["function"] = "function"
    id: str | None = None
    index: Annotated[int | None, Field(exclude=True)] = None
    """That of a stream's delta."""
    function: CalledFunction


class ChatMessage(Message):
    """A message, or what a tool returned."""

    role: Literal["system", "developer", "user", "assistant", "tool"]  # type: ignore[assignment]
    tool_calls: Annotated[list[PastCall], Field(max_length=100)] | None = None
    tool_call_id: str | None = None
    parsed: _Parsed = None

    def spell(self, form: CallFormat) -> str:
        calls = [form.write(call.function.name, call.function.arguments) for call in self.tool_calls or ()]
        return "\n".join([*([self.text] if self.text else []), *calls])


def _check_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise ValueError("must have the type object")
    return schema


class FunctionDefinition(StrictSchema):
    """A function that the model may call."""

    name: _Name
    description: _Text | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_check_parameters)] | None = None
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


def _format_schema(field: str, kind: str, schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """The JSON schema of a text format, that of `field`; None: any text."""
    if kind == "json_schema" and schema is None:
        raise ApiError(400, f"{field}: json_schema has no schema", param=field, code="missing_parameter")
    if kind != "json_schema" and schema is not None:
        raise ApiError(400, f"{field}: {kind} has no schema; json_schema does", param=field, code="invalid_parameter")
    return None if kind == "text" else {"type": "object"} if kind == "json_object" else schema


class ChatRequest(GenerationFields):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=500)]
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
        schema = _format_schema("response_format", form.type, form.json_schema.schema_ if form.json_schema else None)
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
            [Tool(name, tool.function.parameters) for name, tool in tools.items() if named in (None, name)],
            required=named is not None or self.tool_choice == "required",
            parallel=named is None and self.parallel_tool_calls is not False,
            described=[tool.model_dump(exclude_none=True) for tool in tools.values()],
        )


class InputItem(Message):
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
        return [("text.format", _format_schema("text.format", form.type, form.schema_), "json_schema")]

    @property
    def messages(self) -> list[Message]:
        """The instructions, if there are any, and the input."""
        system = [Message(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*system, Message(role="user", content=self.input)]
        return [*system, *self.input]
