"""Examples that a run did not learn from, to evaluate it on: pairs for one of pairs, chats, or labelled texts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.examples.read_examples import EXAMPLE_SUFFIXES, read_examples
from gpt_cli.corpus.examples.tokens import Examples, encode_examples
from gpt_cli.corpus.labelled.prepare_labelled import LabelledTexts, encode_labelled
from gpt_cli.corpus.labelled.read_labelled import read_labelled
from gpt_cli.corpus.readers import ReaderOptions, inner_suffix
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import Notify, UserError
from gpt_cli.sampling import drop_unknown
from gpt_cli.tokenizer import Tokenizer

_KEYS: dict[str, tuple[str, ...]] = {
    "pairs": ("prompt_key", "completion_key"),
    "chat": ("messages_key",),
    "labelled": ("text_key", "label_key"),
}
_NAMES = {"pairs": "pairs", "chat": "chats", "labelled": "labels"}


def holds_examples(data: DataConfig, source: str, text_key: str | None) -> bool:
    """True where `source` holds examples for a run of this `data`: tables or JSON lines, and no `text_key` is named."""
    if data.format not in ("pairs", "chat") or text_key is not None:
        return False
    files = find_files(source, ReaderOptions(data.encoding), lambda _: None)
    return any(inner_suffix(Path(file.name)) in EXAMPLE_SUFFIXES for file in files)


def read_given_examples(
    source: str, data: DataConfig, tokenizer: Tokenizer, *, skip_unknown: bool, note: Notify
) -> Examples:
    """The examples of `source` as tokens, under the keys and with the template of a run.

    Raises what reading raises, UserError where there are none, and UnknownCharacters unless they are to be skipped.
    """
    with _keys_of_run(data):
        examples = list(read_examples(source, data, note))
    if not examples:
        raise UserError(f"{source} has no examples")
    if skip_unknown:
        known = _UnknownDropper(tokenizer, note)
        examples = [
            replace(one, turns=tuple((known(prompt), known(completion)) for prompt, completion in one.turns))
            for one in examples
        ]
        known.report()
    return encode_examples(tokenizer, examples, data.completion_end)


def read_given_labelled(
    source: str, data: DataConfig, tokenizer: Tokenizer, *, skip_unknown: bool, note: Notify
) -> LabelledTexts:
    """Labelled texts, likewise; UserError, too, where nothing is left of one."""
    with _keys_of_run(data):
        texts = list(read_labelled(source, data, note))
    if not texts:
        raise UserError(f"{source} has no texts")
    if skip_unknown:
        known = _UnknownDropper(tokenizer, note)
        texts = [replace(text, text=known(text.text)) for text in texts]
        known.report()
        for text in texts:
            if not text.text:
                raise UserError("the vocabulary has no character of this text", where=text.where)
    return encode_labelled(tokenizer, texts)


class _UnknownDropper:
    """Texts without the characters that a vocabulary lacks, which are counted."""

    def __init__(self, tokenizer: Tokenizer, note: Notify) -> None:
        self._tokenizer, self._note = tokenizer, note
        self._left_out: set[str] = set()

    def __call__(self, text: str) -> str:
        kept, unknown = drop_unknown(self._tokenizer, text)
        self._left_out.update(unknown)
        return kept

    def report(self) -> None:
        """Say how many characters there were."""
        if self._left_out:
            self._note(f"left out {len(self._left_out)} distinct characters that the vocabulary lacks")


@contextmanager
def _keys_of_run(data: DataConfig) -> Iterator[None]:
    """Replace hints about keys of the config, which an evaluation cannot change, by the keys that the run reads."""
    try:
        yield
    except UserError as error:
        hint = error.hint or ""
        keys = " and ".join(repr(getattr(data, option)) for option in _KEYS[data.format])
        if "data.completion_end" in hint:
            error.hint = "leave such examples out"
        elif "data.format" in hint:
            error.hint = f"this run learned {_NAMES[data.format]}, and reads files with {keys}"
        elif "_key=" in hint and "--text-key" not in hint:
            there = f"{hint.partition('; ')[0]}; " if "; " in hint else ""
            error.hint = f"{there}this run reads {keys}: name them so in a copy"
            if data.format != "labelled":
                error.hint += ", or read texts with --text-key KEY"
        raise
