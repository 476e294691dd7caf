"""The chat template of an imported model: Jinja, rendered in a sandbox as Transformers renders it. Without torch.

A template is a program of the model's author. The sandbox (Jinja's `ImmutableSandboxedEnvironment`) gives it the
messages and the texts of the special tokens, and no way to files, modules or attributes of objects.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gpt_cli.config import Config
from gpt_cli.corpus.turn_template import TurnTemplate, refuse_marks
from gpt_cli.errors import RequestError
from gpt_cli.sampling.conversation import ContextWindow, Conversation, Turn, drop_beginning, no_room
from gpt_cli.tokenizer import ForeignTokenizer, Tokenizer
from gpt_cli.tokenizer.base import encode_text

_LONGEST = 1 << 22  # characters of a rendered conversation


class _Generation(Extension):
    """`{% generation %}`, which marks what an assistant wrote: its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateMessage(NamedTuple):
    """A message as a template reads it."""

    role: str
    text: str
    fields: Mapping[str, Any] = MappingProxyType({})
    """Besides `role` and `content`, such as the calls of an answer."""


class TemplateConversation:
    """A conversation like `Conversation`, of which the whole is rendered by the model's template at each turn.

    The oldest turns are dropped until it fits; the system message stays. A message that alone does not fit loses the
    beginning of its text, and keeps its role. Raises RequestError for a template that is not valid.
    """

    def __init__(
        self,
        tokenizer: ForeignTokenizer,
        context_length: int,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        assert tokenizer.chat_template is not None
        self.system = system
        self.turns: list[Turn] = []
        """The transcript: all turns."""
        self.text = ""
        """The whole text of prompts and answers."""
        self.truncated = False
        """True if anything that was said is no longer seen."""
        self._tokenizer, self._context, self._tools = tokenizer, context_length, tools
        self._messages: list[TemplateMessage] = []
        self._user_text: str | None = None
        compile_template(tokenizer.chat_template)

    def say(self, user_text: str) -> ContextWindow:
        """Add the user's turn. Raises RequestError if the template refuses it or does not fit into the context, with
        nothing changed."""
        return self.say_messages([("user", user_text)])

    def say_messages(self, messages: Sequence[tuple[str, str] | TemplateMessage]) -> ContextWindow:
        """Add messages, in their order. Raises as `say`."""
        said = [TemplateMessage(*message) for message in messages]
        for message in said:
            encode_text(message.text)
        extended = [*self._messages, *said]
        first, window = self._fit(extended)
        self._messages = extended[first:]
        self._user_text = next((message.text for message in reversed(said) if message.role == "user"), None)
        self.text += "".join(f"{message.role}: {message.text}\n" for message in said)
        return window

    def continue_(self) -> ContextWindow:
        """Let the model continue its last answer, or begin a conversation."""
        self._user_text = None
        if not self._messages or self._messages[-1].role != "assistant":
            return self._fit(self._messages)[1]
        return self._fit(self._messages[:-1], self._tokenizer.encode_part(self._messages[-1].text).tolist())[1]

    def answer(self, text: str, seed: int | None) -> None:
        """Add the model's turn."""
        if self._user_text is None and self._messages and self._messages[-1].role == "assistant":
            self._messages[-1] = TemplateMessage("assistant", self._messages[-1].text + text)
        else:
            self._messages.append(TemplateMessage("assistant", text))
        self.text += f"assistant: {text}\n"
        self.turns.append(Turn(self._user_text, text, seed))

    @property
    def whole_text(self) -> str:
        """`text`, after the system message."""
        return self.text if self.system is None else f"system: {self.system}\n{self.text}"

    def reset(self) -> None:
        self.turns.clear()
        self._messages.clear()
        self.text, self.truncated = "", False

    def _fit(self, messages: Sequence[TemplateMessage], answer: Sequence[int] = ()) -> tuple[int, ContextWindow]:
        """(the first of `messages` that is kept, the context): the first one, or a user's from where the rest fits.

        The context ends with the tokens of an `answer`, of which the end alone is seen if it leaves no room.
        """
        room = self._context - len(answer)
        firsts = [0, *(i for i in range(1, len(messages)) if messages[i].role == "user")]
        n = bisect_left(firsts[:-1], True, key=lambda first: len(self._encode(messages[first:])) <= room)
        kept = messages[firsts[n] :]
        tokens = self._encode(kept)
        size = len(tokens) + len(answer)
        if len(tokens) > room:
            tokens = self._shortened(kept, room, refuse=not answer)
        tokens = [*tokens, *answer][-self._context :]
        self.truncated |= firsts[n] > 0 or size > len(tokens)
        dropped = sum(message.role == "user" for message in messages[: firsts[n]])
        return firsts[n], ContextWindow(tokens, dropped, size - len(tokens))

    def _shortened(self, messages: Sequence[TemplateMessage], room: int, *, refuse: bool) -> list[int]:
        """The tokens of `messages` without the beginning of their texts, in their order; all where that is not enough,
        unless they are to be refused with RequestError."""
        shortest = self._shortest(messages)
        needed = len(self._encode(shortest))
        if needed > room and refuse:
            raise no_room(needed, self._context)
        if needed > room:
            return self._encode(messages)
        places = range(len(messages) - 1)
        n = bisect_left(places, True, key=lambda i: len(self._encode([*shortest[: i + 1], *messages[i + 1 :]])) <= room)
        kept = shortest[n].text
        before, after = shortest[:n], messages[n + 1 :]
        tokens = drop_beginning(
            messages[n].text.removesuffix(kept),
            lambda rest: self._encode([*before, messages[n]._replace(text=rest + kept), *after]),
            room,
        )
        assert tokens is not None
        return tokens

    def _shortest(self, messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
        """`messages` with as little of the end of their texts as the template accepts: nothing, the last character (and
        spaces after it), or all."""
        empty = [message._replace(text="") for message in messages]
        ends = [message._replace(text=message.text[len(message.text.rstrip()) - 1 :]) for message in messages]
        for shorter in empty, ends:
            with suppress(RequestError):
                self._encode(shorter)
                return shorter
        return list(messages)

    def _encode(self, messages: Sequence[TemplateMessage]) -> list[int]:
        system = [] if self.system is None else [TemplateMessage("system", self.system)]
        return encode_messages(self._tokenizer, [*system, *messages], self._tools)


def imported_template(config: Config, tokenizer: Tokenizer) -> ForeignTokenizer | None:
    """`tokenizer` if its chat template is that of the run: it has one, and the config spells no turn in another way."""
    if not isinstance(tokenizer, ForeignTokenizer) or tokenizer.chat_template is None:
        return None
    is_spelled = config.sample.prefix or config.sample.suffix or TurnTemplate.of(config.data) is not None
    return None if is_spelled else tokenizer


def open_conversation(
    config: Config, tokenizer: Tokenizer, prefix: str, suffix: str, system: str | None
) -> Conversation | TemplateConversation:
    """The conversation with a model; without `prefix` and `suffix` in the chat template of an imported one.

    Raises RequestError for a system message of more than half of the context, or to a model that learned no chats.
    """
    context, template = config.model.context_length, TurnTemplate.of(config.data)
    imported = None if prefix or suffix else imported_template(config, tokenizer)
    if imported is not None:
        return TemplateConversation(imported, context, system)
    head = ""
    if system is not None:
        if template is None or not template.is_chat:
            raise RequestError("only a run that learned chats (data.format=chat) takes a system message")
        refuse_marks(system, *template.marks)
        head = template.message("system", system)
        if (n_token := len(tokenizer.encode_prompt(head))) > context // 2:
            size = f"{n_token:,} tokens, more than half of the context of {context:,}"
            raise RequestError(f"the system message has {size}")
    return Conversation(tokenizer, context, prefix, suffix, template, head, system)


def encode_messages(
    tokenizer: ForeignTokenizer,
    messages: Sequence[tuple[str, str] | TemplateMessage],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> list[int]:
    """The ids of messages in the tokenizer's chat template, up to where the assistant answers.

    A template may describe `tools`, functions as OpenAI's API spells them, to the model.
    Raises RequestError for a template that is not valid, or that refuses the messages.
    """
    assert tokenizer.chat_template is not None
    template = compile_template(tokenizer.chat_template)
    spelled = [
        {"role": role, "content": text, **fields} for role, text, fields in (TemplateMessage(*one) for one in messages)
    ]
    special = dict(tokenizer.named)
    try:
        pieces = template.generate(messages=spelled, tools=tools, documents=None, add_generation_prompt=True, **special)
        rendered, size = [], 0
        for piece in pieces:
            rendered.append(piece)
            size += len(piece)
            if size > _LONGEST:
                raise RequestError(f"the chat template writes more than {_LONGEST:,} characters")
    except RequestError:
        raise
    except Exception as error:  # a template is a program
        raise RequestError(f"the chat template of this model refuses the messages: {error}") from None
    if not (tokens := tokenizer.encode_chat("".join(rendered)).tolist()):
        raise RequestError("the chat template of this model writes nothing for these messages")
    return [int(token) for token in tokens]


@cache
def compile_template(source: str) -> Template:
    """The template of `source`. Raises RequestError for one that is not valid."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
    try:
        return environment.from_string(source)
    except Exception as error:  # Python's compiler has limits of its own
        raise RequestError(f"the chat template of this model is not valid: {error}") from None


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise(message: str) -> None:
    raise TemplateError(message)
