"""Characters that the vocabulary lacks, in texts given to a verb: left out, or `<unk>` to the model, with a note."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpt_cli.cli.output import list_characters, note
from gpt_cli.errors import RequestError

if TYPE_CHECKING:
    from gpt_cli.tokenizer import Tokenizer

UnknownChoice = Literal["error", "skip"]


def unknown_option(panel: str | None = None) -> Any:
    """The option `--unknown`, which `--help` shows in the box `panel`."""
    return typer.Option(help="Characters that the vocabulary lacks are an error, or left out.", rich_help_panel=panel)


UnknownOption = Annotated[UnknownChoice, unknown_option()]


def without_unknown(
    tokenizer: "Tokenizer", texts: Sequence[str], *, skip: bool, source: str = "", form: str = "{}"
) -> list[str]:
    """`texts`, without unknown characters if `skip`. Otherwise as they are: `<unk>`, or an error when encoded.

    The note of what was left out names the `source` and is put into `form`.
    """
    from gpt_cli.tokenizer import drop_unknown

    missing = tokenizer.unknown_characters("".join(dict.fromkeys("".join(texts))))
    if not missing or not (skip or tokenizer.unk_id is not None):
        return list(texts)
    if not skip:
        note(form.format(f"the model sees <unk> for what its vocabulary lacks: {list_characters(missing)}"))
        return list(texts)
    left_out = f"left out of the {source}" if source else "left out"
    note(form.format(f"{left_out}, since the vocabulary lacks it: {list_characters(missing)}"))
    return [drop_unknown(tokenizer, text)[0] for text in texts]


def known_choices(tokenizer: "Tokenizer", choices: Sequence[str], *, skip: bool) -> list[str]:
    """The `choices` that the vocabulary can spell. Raises RequestError for none, and unless `skip` for any other."""
    missing = tokenizer.unknown_characters("".join(choices))
    known = [choice for choice in choices if not tokenizer.unknown_characters(choice)]
    if missing and not (skip and known):
        lacked = f"which the vocabulary lacks: {list_characters(missing)}"
        hint = "leave such a choice out, or have --unknown skip do so" if known else "take a model whose text has them"
        raise RequestError(f"{'--choices has' if known else 'each of --choices has'} characters {lacked}", hint=hint)
    if missing:
        note(f"choices left out, since the vocabulary lacks characters of them: {list_characters(missing)}")
    return known


def note_unknown_stops(tokenizer: "Tokenizer", stops: Sequence[str]) -> None:
    """Say which of the texts `stops` can never be written, since the vocabulary lacks characters of them."""
    for stop in stops:
        if "\\n" in stop:
            note(f"'{stop}' holds a backslash and an n; a line break is $'\\n' in a shell")
        if missing := tokenizer.unknown_characters(stop):
            note(f"no text stops at '{stop}', since the vocabulary lacks it: {list_characters(missing)}")


def refuse_unknown(tokenizer: "Tokenizer", texts: Mapping[str, str]) -> None:
    """Raise RequestError for the first of `texts`, by its name in the message, that the vocabulary cannot spell."""
    for name, text in texts.items():
        if missing := [] if tokenizer.unk_id is not None else tokenizer.unknown_characters(text):
            raise RequestError(f"{name} has a character that the vocabulary lacks: {missing[0]!r}")
