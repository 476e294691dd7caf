"""The examples of a source, read by the readers of texts: one pass for the prompts, one for the completions."""

from collections.abc import Iterator
from pathlib import Path

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.examples.training_example import TrainingExample, make_chat, make_pair
from gpt_cli.corpus.readers import ReaderOptions, inner_suffix
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import Notify, RequestError, UserError

EXAMPLE_SUFFIXES = (".jsonl", ".csv", ".parquet")


def read_examples(source: str, data: DataConfig, note: Notify) -> Iterator[TrainingExample]:
    """The examples of `source` in order.

    Raises what reading raises, RequestError for a file that holds none by its name, and UserError, with its place, for
    one of which nothing can be learned.
    """
    if data.format == "chat":
        for where, messages in _column(source, "messages_key", data, note):
            yield make_chat(where, messages, data)
        return
    prompts = dict(_column(source, "prompt_key", data, note))
    completions = dict(_column(source, "completion_key", data, lambda _: None))
    for where in prompts:
        if where not in completions:
            make_pair(where, "", "", data)  # raises
    for where, completion in completions.items():
        yield make_pair(where, prompts.get(where, ""), completion, data)


def _column(source: str, option: str, data: DataConfig, note: Notify) -> Iterator[tuple[str, str]]:
    """The place and the text of what is under the key that `option` names, where it is not empty."""
    key = getattr(data, option)
    for file in find_files(source, ReaderOptions(data.encoding, key, lists=data.format == "chat"), note):
        if inner_suffix(Path(file.name)) not in EXAMPLE_SUFFIXES:
            raise RequestError(
                f"{file.name} holds no {data.format}, which are read from {', '.join(EXAMPLE_SUFFIXES)}",
                hint="data.format=text reads plain text",
            )
        try:
            for name, pieces in file.read(note):
                yield name, b"".join(pieces).decode()
        except UserError as error:
            if error.hint is not None and "data.text_key=" in error.hint:
                there, _, chosen = error.hint.partition("; choose one: ")
                error.hint = f"{there}; choose one: data.{option}={chosen.partition('data.text_key=')[2].rstrip(')')}"
            raise
