"""An example: what is read and what is to be written, in turns, with the template around both."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpt_cli.config.schema import DataConfig
from gpt_cli.config.template import ROLES
from gpt_cli.corpus.records import encoded
from gpt_cli.errors import UserError
from gpt_cli.terminal.escape import escape_control_chars

_EXPECTED = 'a message is such as {"role": "user", "content": "Hello"}'


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """Turns of a prompt and its completion, each with what the template puts around it: the whole is their sum."""

    where: str
    """Its place, for messages."""
    turns: tuple[tuple[str, str], ...]

    @property
    def context(self) -> str:
        """All before the last completion: examples where it is equal are in one split."""
        return "".join(prompt + completion for prompt, completion in self.turns[:-1]) + self.turns[-1][0]

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(prompt + completion for prompt, completion in self.turns)


def make_pair(where: str, prompt: str, completion: str, data: DataConfig) -> TrainingExample:
    """Raises UserError for a completion that is empty, or has the end in it."""
    if not completion:
        raise UserError(
            "the completion is empty, so there is nothing to learn", where=where, hint="leave such examples out"
        )
    _refuse_end("completion", completion, where, data)
    return TrainingExample(where, ((prompt + data.prompt_end, completion + data.completion_end),))


def make_chat(where: str, messages: str, data: DataConfig) -> TrainingExample:
    """The turns of a JSON list of messages; what follows the assistant's last message is left out.

    Raises UserError for what is no such list, another role, and where the assistant says nothing.
    """
    turns: list[tuple[str, str]] = []
    before = ""
    for role, content in _messages(messages, where):
        _refuse_end("message", content, where, data)
        before += role + data.prompt_end
        if role == ROLES[-1]:
            if not content:
                raise UserError("a message of the assistant is empty, so there is nothing to learn", where=where)
            turns.append((before, content + data.completion_end))
            before = ""
        else:
            before += content + data.completion_end
    if not turns:
        raise UserError(
            "there is no message of the assistant, so there is nothing to learn",
            where=where,
            hint="leave such examples out",
        )
    return TrainingExample(where, tuple(turns))


def _messages(text: str, where: str) -> Iterator[tuple[str, str]]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the messages are not JSON: {error}", where=where, hint=_EXPECTED) from error
    if not isinstance(found, list):
        raise UserError("the messages are not a list", where=where, hint=_EXPECTED)
    for message in found:
        role, content = (message.get(key) if isinstance(message, dict) else None for key in ("role", "content"))
        if not isinstance(role, str) or not isinstance(content, str):
            raise UserError("a message has no role and content that are texts", where=where, hint=_EXPECTED)
        if role not in ROLES:
            shown = escape_control_chars(role[:30])
            raise UserError(f"there is no role '{shown}'", where=where, hint=f"roles are {', '.join(ROLES)}")
        encoded(content, where)
        yield role, content


def _refuse_end(what: str, text: str, where: str, data: DataConfig) -> None:
    if data.completion_end in text:
        raise UserError(
            f"this {what} contains {data.completion_end!r}, which ends completions",
            where=where,
            hint="data.completion_end=TEXT chooses an end that no completion contains",
        )
