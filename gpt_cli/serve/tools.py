"""Tool calls: the grammar that keeps a model to the tools of a request, and the calls in the text that it writes.

A call is the text {"name": "NAME", "arguments": {...}}, between <tool_call> and </tool_call> where the model's chat
template has these (Hermes, Qwen), else alone: an answer that begins with { is a call.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpt_cli.errors import RequestError
from gpt_cli.sampling.constraint import compile_constraint, json_rule
from gpt_cli.sampling.grammar_limits import check_limits
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.tokenizer import ForeignTokenizer, Tokenizer

_NAME, _ARGUMENTS = '{"name": ', ', "arguments": '
_HEAD = re.compile(rf'{re.escape(_NAME)}"([^"]+)"{_ARGUMENTS}')
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)  # and strings, which may have brackets
_NO_PARAMETERS = {"properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call, with the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any] | None
    """None: it has none."""

    @property
    def schema(self) -> str:
        """The JSON schema of the arguments, which are always an object."""
        return json.dumps({**(_NO_PARAMETERS if self.parameters is None else self.parameters), "type": "object"})


@dataclass(frozen=True)
class ToolChoice:
    """The tools that an answer may call, of those in a request."""

    tools: Sequence[Tool]
    required: bool
    """True if the answer is a call, or several; False: it may also be text."""
    parallel: bool
    """True if there may be several calls."""
    described: Sequence[Mapping[str, Any]]
    """All tools of the request as OpenAI's API spells them, for the chat template."""


@dataclass(frozen=True)
class ToolCall:
    """A call as far as it is written: `arguments` is JSON text, all of it if the call is complete."""

    name: str
    arguments: str
    complete: bool


@dataclass(frozen=True)
class CallFormat:
    """Marks around a call in a text. Both empty: none."""

    opening: str
    closing: str

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "CallFormat":
        """The format that the model's chat template has."""
        template = tokenizer.chat_template if isinstance(tokenizer, ForeignTokenizer) else None
        return cls("<tool_call>\n", "\n</tool_call>") if template and "<tool_call>" in template else cls("", "")

    def write(self, name: str, arguments: str) -> str:
        """A call as text, such as one of an earlier answer."""
        return f"{self.opening}{_NAME}{json.dumps(name)}{_ARGUMENTS}{arguments}}}{self.closing}"

    def grammar(self, choice: ToolChoice) -> str:
        """A Lark grammar of the answers. Where none is required, any text may stand before the first call."""
        trigger, rest = self.opening.rstrip("\n"), self.opening[len(self.opening.rstrip("\n")) :]
        calls = [
            f"call{i}: {_quote(json.dumps(tool.name) + _ARGUMENTS)} {json_rule(tool.schema)}"
            for i, tool in enumerate(choice.tools)
        ]
        any_call = " | ".join(f"call{i}" for i in range(len(calls)))
        body = f"{_quote(rest + _NAME)} ({any_call}) {_quote('}' + self.closing)}"
        again = f' ("\\n" {_quote(trigger)} body)*' if choice.parallel and trigger else ""
        if choice.required:
            start = f"start: {_quote(trigger)} body{again}"
        elif trigger:  # lazy: once it is there, a call must follow
            start = f"start: TEXT | head body{again}\nhead[lazy]: /(?s:.*){re.escape(trigger)}/\nTEXT: /(?s:.*)/"
        else:
            start = "start: TEXT | body\nTEXT: /([^{](?s:.*))?/"
        return "\n".join([start, f"body: {body}", *calls])

    def read(self, text: str, *, ended: bool) -> tuple[str, list[ToolCall]]:
        """(what the text says, its calls) as far as both are certain; of an `ended` text all."""
        if self.opening:
            at = text.find(self.opening)
            content = text[:at] if at >= 0 else text if ended else text[: len(text) - _overlap(text, self.opening)]
        else:
            at = 0 if text.startswith("{") else -1
            content = text if at < 0 else ""
        calls = []
        while at >= 0 and (head := _HEAD.match(text, at + len(self.opening))):
            end = _object_end(text, head.end())
            calls.append(ToolCall(head[1], text[head.end() : end], end is not None))
            at = -1 if end is None or not self.opening else text.find(self.opening, end)
        return (text if ended and not calls else content), calls


def check_tools(choice: ToolChoice, tokenizer: Tokenizer) -> None:
    """Raise RequestError where no call can be written; it names the first tool whose schema cannot be followed."""
    calls = CallFormat.of(tokenizer).grammar(replace(choice, required=True))
    check_limits("tools", calls)
    try:
        compile_constraint(tokenizer, SamplingParams(grammar=calls))
    except RequestError as error:
        for tool in choice.tools:
            try:
                compile_constraint(tokenizer, SamplingParams(json_schema=tool.schema))
            except RequestError as cause:
                message = cause.message.removeprefix("json_schema: ")
                raise RequestError(f"tools: the parameters of {tool.name}: {message}") from None
        raise RequestError(f"tools: {error.message.removeprefix('grammar: ')}") from None


def _object_end(text: str, start: int) -> int | None:
    """The end of the JSON object that begins at `start`, however deep it is; None: it is not complete."""
    depth = 0
    for part in _BRACKETS.finditer(text, start):
        depth += (part[0] in "{[") - (part[0] in "]}")
        if depth <= 0 and part[0] in "]}":
            return part.end()
    return None


def _quote(text: str) -> str:
    """`text` as a string of Lark."""
    return json.dumps(text, ensure_ascii=False)


def _overlap(text: str, opening: str) -> int:
    """The length of the longest end of `text` with which `opening` begins."""
    return next((n for n in range(min(len(text), len(opening)), 0, -1) if text.endswith(opening[:n])), 0)
