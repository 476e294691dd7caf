"""A text that a user and a model write in turns, and how much of it the model sees. Without torch."""

from dataclasses import dataclass

from gpt_cli.config.template import TurnTemplate
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
    """The context to continue: (T,) tokens, at most a context; and what was dropped just now to make them fit."""

    tokens: list[int]
    dropped_turns: int
    dropped_tokens: int


class Conversation:
    """Turns of `prefix` + what was said + `suffix` + answer, each on a line of its own, one after another.

    The model sees the last `context_length` tokens at most. With a prefix or a suffix the oldest turns are dropped
    whole, while there are others; without, it is one text, of which the beginning is dropped. What is dropped is
    forgotten, so memory does not grow but for the transcript. With a `template`, that of a run that learned pairs or
    chats, its end stands after each answer, and of pairs only the last turn is seen.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context_length: int,
        prefix: str = "",
        suffix: str = "",
        template: TurnTemplate | None = None,
    ) -> None:
        self.turns: list[Turn] = []
        """All of them: the transcript."""
        self._tokenizer, self._context = tokenizer, context_length
        self._prefix, self._suffix = prefix, suffix
        self._separator = "" if template is not None or tokenizer.unknown_characters("\n") else "\n"
        self._end = "" if template is None else template.completion_end
        self._alone = template is not None and not template.is_chat
        self._seen: list[list[int]] = []  # tokens of the turns that are not dropped
        self._text = ""  # the whole text
        self._said: str | None = None

    @property
    def text(self) -> str:
        """The whole text, as the model was given it and wrote it."""
        return self._text

    def say(self, said: str) -> ContextWindow:
        """The user's turn. Raises what encoding raises, such as UnknownCharacters, and then has changed nothing."""
        begins_line = not self._text or self._text.endswith("\n")
        text = ("" if begins_line else self._separator) + self._prefix + said + self._suffix
        tokens = encode_prompt(self._tokenizer, text)
        if self._alone:
            self._seen.clear()
        if self._templated or not self._seen:
            self._seen.append(tokens)
        else:
            self._seen[-1] += tokens
        self._text += text
        self._said = said
        return self._fit()

    def continue_(self) -> ContextWindow:
        """The user says nothing: the model goes on with its own text, or begins one."""
        if not self._seen:
            self._seen.append(encode_prompt(self._tokenizer, ""))
        self._said = None
        return self._fit()

    def answer(self, text: str, seed: int | None) -> None:
        """The model's turn, as far as it got."""
        if text + self._end:
            self._seen[-1] += [int(token) for token in self._tokenizer.encode(text + self._end)]
        self._text += text + self._end
        self.turns.append(Turn(self._said, text, seed))

    def reset(self) -> None:
        self.turns.clear()
        self._seen.clear()
        self._text = ""

    @property
    def _templated(self) -> bool:
        return bool(self._prefix or self._suffix)

    def _fit(self) -> ContextWindow:
        turns = tokens = 0
        while len(self._seen) > 1 and sum(map(len, self._seen)) > self._context:
            del self._seen[0]
            turns += 1
        if len(self._seen) == 1:
            tokens = max(0, len(self._seen[0]) - self._context)
            del self._seen[0][:tokens]
        return ContextWindow([token for turn in self._seen for token in turn], turns, tokens)
