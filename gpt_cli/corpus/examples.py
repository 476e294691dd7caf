"""Pairs and chats: read from records, put into the template, and encoded with the kind of each token.

Each example stands by itself: none is joined with another, or left out. Shapes: E examples, N tokens of all together.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt_cli.config.derived import ROLES
from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.blocks import Split
from gpt_cli.corpus.divide import EncodedTexts, Prepared, divide, encode_member, join_ids, learn_from_divided
from gpt_cli.corpus.readers import RECORD_SUFFIXES, ReaderOptions
from gpt_cli.corpus.records import MissingKeyError, Record, encode_text, take_text
from gpt_cli.corpus.sources import find_files
from gpt_cli.corpus.split import assign_by_hash
from gpt_cli.corpus.turn_template import control_characters
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import Ids, Tokenizer, UnknownCharacters

PROMPT, COMPLETION, COMPLETION_END = 0, 1, 2
_SYSTEM = "system"  # the key of a system message beside the messages
_ROLE_NAMES = {"human": "user", "gpt": "assistant"}  # of ShareGPT


class CompletionEndError(UserError):
    """A text contains what only the template may have."""


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
        return self.text.removesuffix(self.turns[-1][1])

    @property
    def text(self) -> str:
        return "".join(prompt + completion for prompt, completion in self.turns)


@dataclass(frozen=True, eq=False)
class Examples(EncodedTexts):
    """The encoded examples of a split."""

    kinds: npt.NDArray[np.uint8]
    """(N,) PROMPT, COMPLETION, or COMPLETION_END for the last token of a completion."""
    end_text: str
    """The template's text that ends each completion."""

    def last_turn(self, example: int) -> tuple[list[int], list[int]]:
        """Return (ids before the last completion of an example, ids of that completion)."""
        start, stop = self.starts[example : example + 2].tolist()
        ids, kinds = self.tokens[start:stop].tolist(), self.kinds[start:stop]
        boundary = int(np.flatnonzero(kinds == PROMPT)[-1]) + 1
        return ids[:boundary], ids[boundary:]


def prepare_examples(data: DataConfig, config: TokenizerConfig, note: Notify) -> Prepared[Examples]:
    """Read, divide and encode the examples of a config.

    Raises as reading and `train_tokenizer` do, UserError for too few examples, and RequestError for characters that are
    not in the vocabulary.
    """
    division = divide_examples(data, note)
    tokenizer = learn_from_examples(division[0], data, config, note)
    try:
        return Prepared.of(division, tokenizer, lambda part: encode_examples(tokenizer, part, data.completion_end))
    except UnknownCharacters as error:
        missing, template = set(error.characters), set(data.prompt_end + data.completion_end)
        if not missing & template:
            raise
        where, keys = error.where if missing - template else None, ["data.prompt_end", "data.completion_end"]
        raise RequestError(error.message, where=where, kind="set", keys=keys, choices=["TEXT"]) from error


def divide_examples(data: DataConfig, note: Notify) -> tuple[dict[Split, list[TrainingExample]], str]:
    """Return the examples of each split, and the fingerprint of all. Raises as `prepare_examples` does."""

    def unit_hash(example: TrainingExample) -> int:
        """Return 64 bits of the hash of the context; of the whole text, where that is an empty prompt."""
        is_unprompted = data.rules > 1 and example.context == data.prompt_end
        text = example.text if is_unprompted else example.context
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    return divide(
        data,
        lambda source: read_examples(source, data, note),
        lambda example: example.turns,
        lambda examples, val, test: assign_by_hash(list(map(unit_hash, examples)), val, test, "prompts"),
    )


def learn_from_examples(
    splits: dict[Split, list[TrainingExample]], data: DataConfig, config: TokenizerConfig, note: Notify
) -> Tokenizer:
    """Learn the tokenizer of a config; BPE from the training examples without the template, which needs no merges."""
    template = re.compile(f"{re.escape(data.prompt_end)}|{re.escape(data.completion_end)}")

    def training_texts() -> Iterator[str]:
        for example in splits["train"]:
            yield from filter(None, template.split(example.text))

    return learn_from_divided(splits, training_texts, config, note)


def encode_examples(tokenizer: Tokenizer, examples: Sequence[TrainingExample], completion_end: str) -> Examples:
    """Encode examples. A prompt and its completion are encoded separately, as in generation.

    Raises as `Tokenizer.encode` does; UnknownCharacters with the location of the example.
    """
    begin = np.array(tokenizer.begin_ids, dtype=np.uint32)
    parts: list[Ids] = []
    kinds: list[int] = []  # of the parts
    starts = [0]
    for example in examples:
        parts.append(begin)
        kinds.append(PROMPT)
        size = first = starts[-1] + len(begin)
        for turn in example.turns:
            for kind, text in zip((PROMPT, COMPLETION), turn, strict=True):
                encode = tokenizer.encode if size == first else tokenizer.encode_part
                parts.append(encode_member(encode, text, example.where))
                kinds.append(kind)
                size += len(parts[-1])
        starts.append(size)
    part_kinds, lengths = np.array(kinds, dtype=np.uint8), np.array([len(part) for part in parts], dtype=np.int64)
    token_kinds = np.repeat(part_kinds, lengths)
    token_kinds[lengths.cumsum()[part_kinds == COMPLETION] - 1] = COMPLETION_END
    return Examples(join_ids(parts, tokenizer), np.array(starts, dtype=np.int64), token_kinds, completion_end)


def read_examples(source: str, data: DataConfig, note: Notify) -> Iterator[TrainingExample]:
    """Yield the examples of `source` in order; records with nothing at all are skipped.

    Raises as reading does, RequestError for plain text, and UserError, with its location, for an example without a
    completion.
    """
    if data.format == "pairs":
        first, *others = data.prompt_keys
        for record in _records(source, [*data.prompt_keys, data.completion_key], data, note):
            keys = [first, *(key for key in others if key in record.values)]
            prompt = "\n".join(filter(None, [take_text(record, key, "data.prompt_key") for key in keys]))
            completion = take_text(record, data.completion_key, "data.completion_key")
            encode_text(prompt, record.where)
            encode_text(completion, record.where)
            if prompt or completion:
                yield make_pair(record.where, prompt, completion, data)
        return
    unanswered = 0
    for record in _records(source, [data.messages_key, _SYSTEM], data, note):
        if (messages := _messages(record, data)) is not None:
            chat = make_chat(record.where, messages, data)
            unanswered += chat.unanswered
            yield chat
    if unanswered:
        chats = f"{plural(unanswered, 'chat')} {'ends' if unanswered == 1 else 'end'}"
        note(f"{source}: {chats} without an answer; what comes after the last answer is left out")


def _records(source: str, keys: list[str], data: DataConfig, note: Notify) -> Iterator[Record]:
    """Yield the records of `source`, in each of which `keys` occur once."""
    for file in find_files(source, ReaderOptions.of(data), note):
        if file.records is None:
            name = {"chat": "chats"}.get(data.format, data.format)
            message = f"{file.name} is plain text: {name} are read from records, in {', '.join(RECORD_SUFFIXES)}"
            raise RequestError(message, kind="set", keys=["data.format"], choices=["text"])
        yield from file.records(keys, note)


def _messages(record: Record, data: DataConfig) -> Any:
    """Return the messages of a record, those of a text from its JSON; None for an empty text or null."""
    messages = record.values.get(data.messages_key, False)
    if isinstance(messages, str) and messages:
        try:
            messages = json.loads(messages)
        except (ValueError, RecursionError) as error:
            raise UserError(f"the messages are not JSON: {error}", where=record.where) from error
    if messages in (None, ""):
        return None
    if not isinstance(messages, list):
        raise MissingKeyError(data.messages_key, "data.messages_key", record, "list of messages")
    system = record.values.get(_SYSTEM) if data.rules > 1 and messages else None
    return [{"role": "system", "content": system}, *messages] if system and isinstance(system, str) else messages


def make_pair(where: str, prompt: str, completion: str, data: DataConfig) -> TrainingExample:
    """Make an example of one turn. Raises UserError for an empty completion, and for texts that end a part of it."""
    if not completion:
        raise UserError("the completion is empty, so there is nothing to learn", where=where)
    _refuse("prompt", prompt, control_characters(data.prompt_end, data.completion_end), where)
    _refuse("completion", completion, [data.completion_end], where)
    return TrainingExample(where, ((prompt + data.prompt_end, completion + data.completion_end),))


def make_chat(where: str, messages: Sequence[Any], data: DataConfig) -> TrainingExample:
    """Make an example from a list of messages; those after the last message of the assistant are dropped.

    Raises UserError for malformed messages, an unknown role, and no or an empty message of the assistant.
    """
    reserved = {data.completion_end, *control_characters(data.prompt_end, data.completion_end)}
    turns: list[tuple[str, str]] = []
    prompt = ""
    for number, message in enumerate(messages, 1):
        role, content = _role_and_content(number, message, where)
        _refuse("message", content, reserved, where)
        if role != ROLES[-1]:
            prompt += role + data.prompt_end + content + data.completion_end
            continue
        if not content:
            raise UserError("a message of the assistant is empty, so there is nothing to learn", where=where)
        turns.append((prompt + role + data.prompt_end, content + data.completion_end))
        prompt = ""
    if not turns:
        raise UserError("there is no message of the assistant, so there is nothing to learn", where=where)
    return TrainingExample(where, tuple(turns), unanswered=bool(prompt))


def _role_and_content(number: int, message: Any, where: str) -> tuple[str, str]:
    values = message if isinstance(message, dict) else {}
    role, content = values.get("role", values.get("from")), values.get("content", values.get("value"))
    if isinstance(content, list):  # of parts such as {"type": "text", "text": "Hello"}
        parts: list[Any] = [part.get("text") if isinstance(part, dict) else part for part in content]
        content = "".join(parts) if all(isinstance(part, str) for part in parts) else None
    if not isinstance(role, str) or not isinstance(content, str):
        raise UserError(f"message {number} has no role and content that are texts", where=where)
    role = _ROLE_NAMES.get(role, role)
    if role not in ROLES:
        raise UserError(f"there is no role '{escape_control_chars(role[:30])}'", where=where, choices=ROLES)
    encode_text(content, where)
    return role, content


def _refuse(kind: str, text: str, reserved: Iterable[str], where: str) -> None:
    if found := sorted(part for part in reserved if part in text):
        message = f"this {kind} contains {found[0]!r}, which only the template may have"
        raise CompletionEndError(message, where=where, kind="set", keys=["data.completion_end"], choices=["TEXT"])
