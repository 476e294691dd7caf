"""A training example: turns of a prompt and a completion, with the template applied."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.records import encode_text
from gpt_cli.corpus.turn_template import ROLES, control_characters
from gpt_cli.errors import UserError
from gpt_cli.terminal.escape import escape_control_chars

_ROLE_NAMES = {"human": "user", "gpt": "assistant"}  # of ShareGPT
_EXPECTED = 'a message is such as {"role": "user", "content": "Hello"}'


class CompletionEndError(UserError):
    """A text contains the string that ends completions."""


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """Turns of (prompt, completion) with the template applied: concatenated they are the whole text."""

    where: str
    """Its location (`file:line`), for messages."""
    turns: tuple[tuple[str, str], ...]
    unanswered: bool = False
    """Messages after the last of the assistant were left out."""

    @property
    def context(self) -> str:
        """The text before the last completion. Examples with the same context are in the same split."""
        return "".join(prompt + completion for prompt, completion in self.turns[:-1]) + self.turns[-1][0]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(prompt + completion for prompt, completion in self.turns)


def make_pair(location: str, prompt: str, completion: str, data: DataConfig) -> TrainingExample:
    """An example of one turn. Raises UserError for an empty completion, and for a text that has the template's ends."""
    if not completion:
        raise UserError(
            "the completion is empty, so there is nothing to learn", where=location, hint="leave such examples out"
        )
    _refuse_marks("prompt", prompt, location, data)
    _refuse_end("completion", completion, location, data)
    return TrainingExample(location, ((prompt + data.prompt_end, completion + data.completion_end),))


def make_chat(location: str, messages: Sequence[Any], data: DataConfig) -> TrainingExample:
    """An example from a list of messages; those after the last message of the assistant are dropped.

    Raises UserError for malformed messages, an unknown role, and no or an empty message of the assistant.
    """
    turns: list[tuple[str, str]] = []
    prompt = ""
    for role, content in _messages(messages, location):
        _refuse_end("message", content, location, data)
        _refuse_marks("message", content, location, data)
        prompt += role + data.prompt_end
        if role == ROLES[-1]:
            if not content:
                raise UserError(
                    "a message of the assistant is empty, so there is nothing to learn",
                    where=location,
                    hint="leave such examples out",
                )
            turns.append((prompt, content + data.completion_end))
            prompt = ""
        else:
            prompt += content + data.completion_end
    if not turns:
        raise UserError(
            "there is no message of the assistant, so there is nothing to learn",
            where=location,
            hint="leave such examples out",
        )
    return TrainingExample(location, tuple(turns), unanswered=bool(prompt))


def _messages(messages: Sequence[Any], location: str) -> Iterator[tuple[str, str]]:
    for number, message in enumerate(messages, 1):
        values: Mapping[str, Any] = message if isinstance(message, dict) else {}
        role, content = values.get("role", values.get("from")), _text_of(values.get("content", values.get("value")))
        if not isinstance(role, str) or content is None:
            raise UserError(f"message {number} has no role and content that are texts", where=location, hint=_EXPECTED)
        role = _ROLE_NAMES.get(role, role)
        if role not in ROLES:
            escaped = escape_control_chars(role[:30])
            hint = f"roles are {', '.join(ROLES)}: rename this one, or leave its messages out"
            raise UserError(f"there is no role '{escaped}'", where=location, hint=hint)
        encode_text(content, location)
        yield role, content


def _text_of(content: Any) -> str | None:
    """The text of a message: itself, or that of parts such as {"type": "text", "text": "Hello"}; None for others."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    parts: list[Any] = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else None


def _refuse_marks(kind: str, text: str, location: str, data: DataConfig) -> None:
    if found := sorted(control_characters(data.prompt_end, data.completion_end) & set(text)):
        raise CompletionEndError(
            f"this {kind} contains {found[0]!r}, which only the template may have",
            where=location,
            hint="leave the character out, or data.prompt_end=TEXT data.completion_end=TEXT choose other ends",
        )


def _refuse_end(kind: str, text: str, location: str, data: DataConfig) -> None:
    if data.completion_end in text:
        raise CompletionEndError(
            f"this {kind} contains {data.completion_end!r}, which ends completions",
            where=location,
            hint="data.completion_end=TEXT chooses an end that no completion contains",
        )
