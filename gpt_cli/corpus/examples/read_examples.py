"""Read the examples of a source with the readers of texts: one pass for prompts, one for completions."""

from collections.abc import Iterator
from pathlib import Path

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.examples.training_example import TrainingExample, make_chat, make_pair
from gpt_cli.corpus.readers import ReaderOptions, inner_suffix
from gpt_cli.corpus.records import MissingKeyError
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import Notify, RequestError

EXAMPLE_SUFFIXES = (".jsonl", ".csv", ".parquet")


class NoExamplesError(RequestError):
    """A file has a suffix that examples are not read from."""


def read_examples(source: str, data: DataConfig, note: Notify) -> Iterator[TrainingExample]:
    """The examples of `source` in order.

    Raises as reading does, NoExamplesError for a file of another suffix than EXAMPLE_SUFFIXES, and UserError, with its
    location, for an example without a completion.
    """
    if data.format == "chat":
        for location, messages in _column(source, "messages_key", data, note):
            yield make_chat(location, messages, data)
        return
    prompts = dict(_column(source, "prompt_key", data, note))
    completions = dict(_column(source, "completion_key", data, lambda _: None))
    for location in prompts:
        if location not in completions:
            make_pair(location, "", "", data)  # raises
    for location, completion in completions.items():
        yield make_pair(location, prompts.get(location, ""), completion, data)


def _column(source: str, option: str, data: DataConfig, note: Notify) -> Iterator[tuple[str, str]]:
    """Yield (location, text) for each text that is not empty under the key that `data.{option}` names."""
    key = getattr(data, option)
    for file in find_files(source, ReaderOptions(data.encoding, key, lists=data.format == "chat"), note):
        if inner_suffix(Path(file.name)) not in EXAMPLE_SUFFIXES:
            examples = "chats" if data.format == "chat" else data.format
            raise NoExamplesError(
                f"{file.name} holds no {examples}, which are read from {', '.join(EXAMPLE_SUFFIXES)}",
                hint="data.format=text reads plain text",
            )
        try:
            for name, pieces in file.read(note):
                yield name, b"".join(pieces).decode()
        except MissingKeyError as error:
            other = {"prompt_key": data.completion_key, "completion_key": data.prompt_key}.get(option)
            error.suggest(f"data.{option}=", unlike=other)
            if data.format != "pairs" and error.has_pairs:
                error.hint = "it has prompts and completions: data.format=pairs trains on them"
            raise
