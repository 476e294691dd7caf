"""A conversation of a user and a model, and its context window. Without torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpt_cli.config.template import TurnTemplate, refuse_marks
from gpt_cli.sampling.prompt import encode_prompt
from gpt_cli.tokenizer import Tokenizer


@dataclass(frozen=True)
class Turn:
    """A user's text and the model's answer. `user` is None where the model continued by itself."""

    user: str | None
    answer: str
    seed: int | None


@dataclass(frozen=True)
class ContextWindow:
    """The (T,) tokens to continue, at most `context_length`, and how much was dropped just now to make them fit."""

    tokens: list[int]
    dropped_turns: int
    dropped_tokens: int


class Conversation:
    """Turns of `prefix` + user's text + `suffix` + answer, each on a line of its own.

    The model sees at most the last `context_length` tokens. With a prefix or a suffix the oldest turns are dropped
    whole, except the last; without, the beginning of the text is dropped. The tokens dropped are not kept in memory.
    With a `template`, that of a run trained on pairs or chats, its end follows each answer, and after training on pairs
    only the last turn is seen. `head`, the tokens of what the system says, at most half of the context, comes before
    all turns and is not dropped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context_length: int,
        prefix: str = "",
        suffix: str = "",
        template: TurnTemplate | None = None,
        head: Sequence[int] = (),
        system: str | None = None,
    ) -> None:
        self.system = system
        """The text of the system, of which `head` are the tokens with its role."""
        self.turns: list[Turn] = []
        """The transcript: all turns."""
        self._tokenizer = tokenizer
        self._head = list(head or tokenizer.begin_ids)
        self._context = context_length - len(self._head)  # that of the turns
        self._prefix, self._suffix = prefix, suffix
        self._separator = "" if template is not None or tokenizer.unknown_characters("\n") else "\n"
        self._template = template
        self._end = "" if template is None else template.completion_end
        self._single_turn = template is not None and not template.is_chat
        self._seen: list[list[int]] = []  # tokens of the turns that are not dropped
        self.text = ""
        """The whole text of prompts and answers."""
        self._user_text: str | None = None

    def say(self, user_text: str) -> ContextWindow:
        """Add the user's turn. Raises RequestError, also for unknown characters, with nothing changed."""
        self._check(user_text)
        begins_line = not self.text or self.text.endswith("\n")
        text = ("" if begins_line else self._separator) + self._prefix + user_text + self._suffix
        return self._add(text, user_text)

    def say_messages(self, messages: Sequence[tuple[str, str]]) -> ContextWindow:
        """Add (role, text) messages between two answers, in their order: for a template of chats. Raises as `say`."""
        template = self._template
        assert template is not None
        for _, content in messages:
            self._check(content)
        of_user = [content for role, content in messages[-1:] if role == "user"]  # what a config may spell otherwise
        text = "".join(template.message(*message) for message in messages[: len(messages) - len(of_user)])
        text += self._prefix + of_user[0] + self._suffix if of_user else template.answer_start
        return self._add(text, None)

    def _check(self, text: str) -> None:
        refuse_marks(text, self._prefix, self._suffix)
        if self._tokenizer.unk_id is None and self._tokenizer.unknown_characters(text):
            self._tokenizer.encode(text)  # raises, with its place in the user's text

    def _add(self, text: str, user_text: str | None) -> ContextWindow:
        if self._single_turn:
            self._seen.clear()
        tokens = self._encode(text)
        if self._templated or not self._seen:
            self._seen.append(tokens)
        else:
            self._seen[-1] += tokens
        self.text += text
        self._user_text = user_text
        return self._fit()

    def continue_(self) -> ContextWindow:
        """Let the model continue its own text, or begin one, without a user's turn."""
        if not self._seen:
            self._seen.append(self._encode(""))
        self._user_text = None
        return self._fit()

    def answer(self, text: str, seed: int | None) -> None:
        """Add the model's turn."""
        if text + self._end:
            self._seen[-1] += [int(token) for token in self._tokenizer.encode_part(text + self._end)]
        self.text += text + self._end
        self.turns.append(Turn(self._user_text, text, seed))

    @property
    def whole_text(self) -> str:
        """`text`, after what the system says."""
        return self._tokenizer.decode(self._head) + self.text

    def reset(self) -> None:
        self.turns.clear()
        self._seen.clear()
        self.text = ""

    @property
    def _templated(self) -> bool:
        return bool(self._prefix or self._suffix)

    def _encode(self, text: str) -> list[int]:
        """The ids of `text` after those that are there; at least one token of all."""
        if not text:
            return [] if self._tokenizer.begin_ids else encode_prompt(self._tokenizer, "")
        goes_on = self._seen or len(self._head) > len(self._tokenizer.begin_ids)
        encode = self._tokenizer.encode_part if goes_on else self._tokenizer.encode
        return [int(token) for token in encode(text)]

    def _fit(self) -> ContextWindow:
        turns = tokens = 0
        while len(self._seen) > 1 and sum(map(len, self._seen)) > self._context:
            del self._seen[0]
            turns += 1
        if len(self._seen) == 1:
            tokens = max(0, len(self._seen[0]) - self._context)
            del self._seen[0][:tokens]
        return ContextWindow(self._head + [token for turn in self._seen for token in turn], turns, tokens)
