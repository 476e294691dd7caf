"""Read the examples of a source with the readers of texts: one pass for prompts, one for completions."""

from collections.abc import Iterator
from pathlib import Path

from gpt_cli.config.dump import join_overrides
from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.examples.training_example import TrainingExample, make_chat, make_pair
from gpt_cli.corpus.readers import ReaderOptions, inner_suffix
from gpt_cli.corpus.record_errors import MissingKeyError
from gpt_cli.corpus.sources import find_files, how_to_make_lines
from gpt_cli.errors import Notify, RequestError
from gpt_cli.terminal.plural import plural

EXAMPLE_SUFFIXES = (".jsonl", ".csv", ".parquet")


class NoExamplesError(RequestError):
    """A file has a suffix that examples are not read from."""


def read_examples(source: str, data: DataConfig, note: Notify) -> Iterator[TrainingExample]:
    """The examples of `source` in order.

    Raises as reading does, NoExamplesError for a file of another suffix than EXAMPLE_SUFFIXES, and UserError, with its
    location, for an example without a completion.
    """
    if data.format == "chat":
        unanswered = 0
        for location, messages in _column(source, "messages_key", data, note):
            chat = make_chat(location, messages, data)
            unanswered += chat.unanswered
            yield chat
        if unanswered:
            chats = f"{plural(unanswered, 'chat')} {'ends' if unanswered == 1 else 'end'}"
            note(f"{source}: {chats} without an answer; what comes after the last answer is left out")
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
            is_json = Path(file.name).suffix.lower() == ".json"
            raise NoExamplesError(
                f"{file.name} holds no {examples}, which are read from {', '.join(EXAMPLE_SUFFIXES)}",
                hint=f"of a list, make JSON lines: {how_to_make_lines(Path(file.name))}"
                if is_json
                else "data.format=text reads plain text",
            )
        try:
            for name, pieces in file.read(note):
                yield name, b"".join(pieces).decode()
        except MissingKeyError as error:
            _suggest_keys(error, option, data)
            raise


def _suggest_keys(error: MissingKeyError, option: str, data: DataConfig) -> None:
    """Have the hint suggest what is missing by the names that datasets use, else the first key that is not taken."""
    other = {"prompt_key": data.completion_key, "completion_key": data.prompt_key}.get(option)
    error.suggest(f"data.{option}=", unlike=other)
    names = dict(zip(("prompt_key", "completion_key"), error.pairs or (), strict=False))
    if data.format != "pairs":
        if error.pairs and not error.is_settled:
            error.hint = f"it has prompts and completions: {join_overrides(error.as_pairs())} trains on them"
        return
    missing = {f"data.{key}": name for key, name in names.items() if getattr(data, key) not in error.available}
    if "data.prompt_key" in missing and (joining := error.how_to_join_prompts()) is not None:
        error.advise(joining)
    elif missing.get(f"data.{option}", other) != other:
        error.advise(f"{'choose one:' if len(missing) == 1 else 'such as'} {join_overrides(missing)}")
