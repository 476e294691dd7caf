"""Read the examples of a source: pairs or chats, from the records of its files."""

import json
from collections.abc import Iterator
from typing import Any

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.examples.training_example import TrainingExample, make_chat, make_pair
from gpt_cli.corpus.readers import RECORD_SUFFIXES, ReaderOptions
from gpt_cli.corpus.records import MissingKeyError, Record, encode_text, take_text
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import Notify, RequestError, UserError
from gpt_cli.terminal.words import plural

_SYSTEM = "system"  # the key of a system message beside the messages


class NoExamplesError(RequestError):
    """A file is plain text, which holds no examples."""


def read_examples(source: str, data: DataConfig, note: Notify) -> Iterator[TrainingExample]:
    """The examples of `source` in order; records with nothing at all are skipped.

    Raises as reading does, NoExamplesError for plain text, and UserError, with its location, for an example without a
    completion.
    """
    if data.format == "pairs":
        for record in _records(source, [*data.prompt_keys, data.completion_key], data, note):
            prompt, completion = _prompt(record, data), take_text(record, data.completion_key, "data.completion_key")
            for text in (prompt, completion):
                encode_text(text, record.where)
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
    """The records of `source`, in each of which `keys` occur once."""
    for file in find_files(source, ReaderOptions.of(data), note):
        if file.records is None:
            raise NoExamplesError(
                f"{file.name} is plain text: {'chats' if data.format == 'chat' else data.format} are read from records,"
                f" in {', '.join(RECORD_SUFFIXES)}",
                hint="data.format=text reads plain text",
            )
        yield from file.records(keys, note)


def _prompt(record: Record, data: DataConfig) -> str:
    first, *others = data.prompt_keys
    parts = [take_text(record, first, "data.prompt_key")]
    parts += [take_text(record, key, "data.prompt_key") for key in others if key in record.values]
    return "\n".join(filter(None, parts))


def _messages(record: Record, data: DataConfig) -> Any:
    """The messages of a record, those of a text from its JSON; None for an empty text or null."""
    key, values = data.messages_key, record.values
    messages = values.get(key)
    if isinstance(messages, str) and messages:
        try:
            messages = json.loads(messages)
        except (ValueError, RecursionError) as error:
            raise UserError(f"the messages are not JSON: {error}", where=record.where) from error
    if key not in values or not (messages is None or messages == "" or isinstance(messages, list)):
        raise MissingKeyError(key, "data.messages_key", record, "list of messages")
    system = values.get(_SYSTEM) if data.rules > 1 else None
    if messages and isinstance(system, str) and system:
        return [{"role": "system", "content": system}, *messages]
    return messages if messages or messages == [] else None
