"""A conversation of a user and a model, and its context window. Without torch."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpt_cli.corpus.turn_template import TurnTemplate, refuse_marks
from gpt_cli.errors import RequestError
from gpt_cli.sampling.prompt import encode_prompt
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.base import Ids

_NEARBY = 32  # characters in which a longer text may have fewer tokens: " brown" one, and "rown" four


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

    The model sees at most `context_length` tokens. With a prefix or a suffix the oldest turns are dropped whole, except
    the last, of which the beginning of the user's text is dropped; without, the beginning of the whole text is. What is
    dropped is not kept in memory. With a `template`, that of a run trained on pairs or chats, its end follows each
    answer, and after training on pairs only the last turn is seen. `head`, the text of what the system says, at most
    half of the context, comes before all turns and is not dropped; it and the first turn are encoded as one piece, as
    in training.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context_length: int,
        prefix: str = "",
        suffix: str = "",
        template: TurnTemplate | None = None,
        head: str = "",
        system: str | None = None,
    ) -> None:
        self.system = system
        """The text of the system, which is in `head` with its role."""
        self.turns: list[Turn] = []
        """The transcript: all turns."""
        self.truncated = False
        """True if anything that was said is no longer seen."""
        self._tokenizer, self._context = tokenizer, context_length
        self._prefix, self._suffix = prefix, suffix
        self._separator = "" if template is not None or tokenizer.unknown_characters("\n") else "\n"
        self._template = template
        self._end = "" if template is None else template.completion_end
        self._single_turn = template is not None and not template.is_chat
        self._head_text = head
        self._head = [*tokenizer.begin_ids, *_ids(tokenizer.encode(head))]
        self._start: list[int] = []  # `_head` once the first turn, which was encoded with it, is dropped
        self._seen: list[list[int]] = []  # tokens of the turns that are not dropped
        self._unsaid = 0  # of them, the first ones that only stand for the start of a text
        self._messages: list[tuple[str, str, str]] = []  # of the last turn: mark, text, mark
        self._answered: list[int] = []  # tokens of its answer
        self.text = ""
        """The whole text of prompts and answers."""
        self._user_text: str | None = None

    def say(self, user_text: str) -> ContextWindow:
        """Add the user's turn. Raises RequestError, also for unknown characters, with nothing changed."""
        self._check(user_text)
        begins_line = not self.text or self.text.endswith("\n")
        message = (self._prefix, user_text, self._suffix)
        return self._add("" if begins_line else self._separator, [message], user_text)

    def say_messages(self, messages: Sequence[tuple[str, str]]) -> ContextWindow:
        """Add (role, text) messages between two answers, in their order: for a template of chats. Raises as `say`."""
        template = self._template
        assert template is not None
        for _, content in messages:
            self._check(content)
        spelled = [(f"{role}{template.prompt_end}", text, template.completion_end) for role, text in messages]
        if messages and messages[-1][0] == "user":  # what a config may spell otherwise
            spelled[-1] = (self._prefix, messages[-1][1], self._suffix)
        elif messages:
            mark, text, end = spelled[-1]
            spelled[-1] = (mark, text, end + template.answer_start)
        return self._add("", spelled or [("", "", template.answer_start)], None)

    def _check(self, text: str) -> None:
        refuse_marks(text, self._prefix, self._suffix)
        if self._tokenizer.unk_id is None and self._tokenizer.unknown_characters(text):
            self._tokenizer.encode(text)  # raises, with its place in the user's text

    def _add(self, separator: str, messages: list[tuple[str, str, str]], user_text: str | None) -> ContextWindow:
        text = separator + _joined(messages)
        begins = self._single_turn or not self._seen
        tokens = self._encode_first(text) if begins else _ids(self._tokenizer.encode_part(text))
        if self._templated and len(self._head) + len(tokens) > self._context:
            self._refuse_no_room(messages[-1])
        if begins:
            self.truncated |= bool(self.text)
            self._start, self._seen, self._unsaid = [], [], 0
        if self._templated or begins:
            self._seen.append(tokens)
        else:
            self._seen[-1] += tokens
        self._messages, self._answered = messages, []
        self.text += text
        self._user_text = user_text
        return self._fit()

    def continue_(self) -> ContextWindow:
        """Let the model continue its own text, or begin one, without a user's turn."""
        if not self._seen:
            self._seen.append(self._encode_first(""))
            self._unsaid = len(self._seen[0]) - len(self._head)
            self._messages = [("", "", "")]
        self._user_text = None
        return self._fit()

    def answer(self, text: str, seed: int | None) -> None:
        """Add the model's turn."""
        tokens = _ids(self._tokenizer.encode_part(text + self._end)) if text + self._end else []
        self._seen[-1] += tokens
        self._answered += tokens
        self.text += text + self._end
        self.turns.append(Turn(self._user_text, text, seed))

    @property
    def whole_text(self) -> str:
        """`text`, after what the system says."""
        return self._tokenizer.decode(self._head) + self.text

    def reset(self) -> None:
        self.turns.clear()
        self._seen.clear()
        self._start, self._messages, self._answered = [], [], []
        self.text, self.truncated = "", False

    @property
    def _templated(self) -> bool:
        return bool(self._prefix or self._suffix)

    def _encode_first(self, text: str) -> list[int]:
        """The ids of the head and of `text` after it; at least one."""
        ids = [*self._tokenizer.begin_ids, *_ids(self._tokenizer.encode(self._head_text + text))]
        return ids or encode_prompt(self._tokenizer, "")

    def _refuse_no_room(self, message: tuple[str, str, str]) -> None:
        """Raise RequestError if `message` does not fit into the context even without its text."""
        needed = len(self._encode_first(message[0] + message[2]))
        if needed > self._context:
            raise no_room(needed, self._context)

    @property
    def _size(self) -> int:
        return len(self._start) + sum(map(len, self._seen))

    def _fit(self) -> ContextWindow:
        turns, whole = 0, self._size
        while len(self._seen) > 1 and self._size > self._context:
            self._start = self._head
            del self._seen[0]
            turns += 1
        size = self._size
        if size > self._context:
            shortened = self._shortened() if self._templated else None
            if shortened is not None:
                self._start, self._seen = [], [shortened]
            else:
                self._start, tokens = self._head, self._seen[0]
                self._seen = [tokens[len(tokens) + len(self._head) - self._context :]]
        self.truncated |= whole - self._size > self._unsaid
        self._unsaid = max(0, self._unsaid - (whole - self._size))
        dropped_tokens = size - self._size
        tokens = [*self._start, *(token for turn in self._seen for token in turn)]
        return ContextWindow(tokens, turns, dropped_tokens)

    def _shortened(self) -> list[int] | None:
        """The last turn as the first one, without its oldest messages, or of its last one the beginning of the text.

        None if its answer leaves no room for a message without text.
        """
        room = self._context - len(self._answered)

        def encode_from(first: int) -> list[int]:
            return self._encode_first(_joined(self._messages[first:]))

        places = range(len(self._messages))
        first = bisect_left(places, True, key=lambda first: len(encode_from(first)) <= room)
        if first < len(places):
            return encode_from(first) + self._answered
        before, text, after = self._messages[-1]
        rest = drop_beginning(text, lambda rest: self._encode_first(before + rest + after), room)
        return None if rest is None else rest + self._answered


def drop_beginning(text: str, encode: Callable[[str], list[int]], room: int) -> list[int] | None:
    """The tokens that `encode` makes of `text` without its first characters, as few as leave at most `room` tokens.

    None if there are more even without any text.
    """

    def fits(first: int) -> bool:
        return len(encode(text[first:])) <= room

    kept = max(1, room)
    while kept < len(text) and fits(len(text) - kept):
        kept *= 2
    places = range(max(0, len(text) - kept), len(text))
    last = places.start + bisect_left(places, True, key=fits)
    nearby = range(max(0, last - _NEARBY), last)
    tokens = encode(text[next(filter(fits, nearby), last) :])
    return tokens if len(tokens) <= room else None


def no_room(needed: int, context_length: int) -> RequestError:
    """The error for a message that does not fit even without its text."""
    return RequestError(f"a message has {needed:,} tokens even without its text, and the context {context_length:,}")


def _joined(messages: Sequence[tuple[str, str, str]]) -> str:
    return "".join(part for message in messages for part in message)


def _ids(tokens: Ids) -> list[int]:
    return [int(token) for token in tokens]
