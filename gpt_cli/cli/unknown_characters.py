"""Characters that the vocabulary lacks, in texts given to a verb: left out, or `<unk>` to the model, with a note."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer

from gpt_cli.cli.output import list_characters, note
from gpt_cli.errors import RequestError
from gpt_cli.tokenizer import Tokenizer, drop_unknown

UnknownChoice = Literal["error", "skip"]


def unknown_option(panel: str | None = None) -> Any:
    """The option `--unknown`, which `--help` shows in the box `panel`."""
    return typer.Option(help="Characters that the vocabulary lacks are an error, or left out.", rich_help_panel=panel)


UnknownOption = Annotated[UnknownChoice, unknown_option()]


def without_unknown(tokenizer: Tokenizer, texts: Sequence[str], unknown: UnknownChoice, source: str) -> list[str]:
    """`texts` without unknown characters, if they are to be skipped. Otherwise as they are, to be encoded or refused.

    The note of what was left out names the `source`.
    """
    missing = tokenizer.unknown_characters("".join(dict.fromkeys("".join(texts))))
    if missing and unknown == "skip":
        note(f"left out of the {source}, since the vocabulary lacks it: {list_characters(missing)}")
        return [drop_unknown(tokenizer, text)[0] for text in texts]
    if missing and tokenizer.unk_id is not None:
        note(f"the model sees <unk> for what its vocabulary lacks: {list_characters(missing)}")
    return list(texts)


def known_choices(tokenizer: Tokenizer, choices: Sequence[str], unknown: UnknownChoice) -> list[str]:
    """The `choices` that the vocabulary can spell. Raises RequestError unless the others are to be skipped."""
    missing = tokenizer.unknown_characters("".join(choices))
    known = [choice for choice in choices if not tokenizer.unknown_characters(choice)]
    if missing and not (known and unknown == "skip"):
        whose = "--choices has" if known else "each of --choices has"
        lacked = f"{whose} characters which the vocabulary lacks: {list_characters(missing)}"
        raise RequestError(lacked, kind="unknown characters" if known else None)
    if missing:
        note(f"choices left out, since the vocabulary lacks characters of them: {list_characters(missing)}")
    return known


def note_unknown_stops(tokenizer: Tokenizer, stops: Sequence[str]) -> None:
    """Note each of `stops` that no text can have, since the vocabulary lacks characters of it."""
    for stop in stops:
        if missing := tokenizer.unknown_characters(stop):
            note(f"no text stops at '{stop}', since the vocabulary lacks it: {list_characters(missing)}")


def refuse_unknown(tokenizer: Tokenizer, texts: Mapping[str, str]) -> None:
    """Raise RequestError for the first of `texts`, by its name in the message, that the vocabulary cannot spell."""
    for name, text in texts.items():
        if missing := [] if tokenizer.unk_id is not None else tokenizer.unknown_characters(text):
            raise RequestError(f"{name} has a character that the vocabulary lacks: {missing[0]!r}")


@contextmanager
def located(where: str | None) -> Iterator[None]:
    """Give a RequestError about a text, such as one of unknown characters, the place of the text."""
    try:
        yield
    except RequestError as error:
        error.where = error.where or where
        raise
