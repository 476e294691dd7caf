"""Read other examples to evaluate a run on, in the format of its own: pairs, chats or labelled texts."""

from collections.abc import Sequence
from dataclasses import replace

from gpt_cli.config.schema import DataConfig
from gpt_cli.corpus.examples import Examples, encode_examples, read_examples
from gpt_cli.corpus.labelled import LabelledText, LabelledTexts, encode_labelled, read_labelled
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.sources import find_files
from gpt_cli.errors import Notify, UserError
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.words import plural
from gpt_cli.tokenizer import Tokenizer, drop_unknown

_LISTED = 10  # labels in an error


def holds_examples(data: DataConfig, source: str, text_key: str | None) -> bool:
    """True if the run trains on pairs or chats, `source` has tables or JSON lines, and no `text_key` is given."""
    if data.format not in ("pairs", "chat") or text_key is not None:
        return False
    return any(file.records is not None for file in find_files(source, ReaderOptions.of(data), lambda _: None))


def read_given_examples(
    source: str, data: DataConfig, tokenizer: Tokenizer, *, skip_unknown: bool, note: Notify
) -> Examples:
    """The examples of `source`, encoded; keys and template are those of the run.

    Raises as reading does, UserError if there are none, and UnknownCharacters unless `skip_unknown`.
    """
    examples = list(read_examples(source, data, note))
    if not examples:
        raise UserError(f"{source} has no examples")
    if skip_unknown:
        drop = UnknownDropper(tokenizer, note)
        examples = [
            replace(example, turns=tuple((drop(prompt), drop(completion)) for prompt, completion in example.turns))
            for example in examples
        ]
        drop.report()
    return encode_examples(tokenizer, examples, data.completion_end)


def read_given_labelled(
    source: str, data: DataConfig, tokenizer: Tokenizer, labels: Sequence[str], *, skip_unknown: bool, note: Notify
) -> LabelledTexts:
    """The labelled texts of `source`, encoded.

    Raises as `read_given_examples`, and UserError for a label that is none of `labels` and a text that becomes empty.
    """
    texts = list(read_labelled(source, data, note))
    if not texts:
        raise UserError(f"{source} has no texts")
    check_labels(texts, labels)
    if skip_unknown:
        drop = UnknownDropper(tokenizer, note)
        texts = [replace(text, text=drop(text.text)) for text in texts]
        drop.report()
        for text in texts:
            if not text.text:
                raise UserError("the vocabulary has no character of this text", where=text.where)
    return encode_labelled(tokenizer, texts)


def check_labels(texts: Sequence[LabelledText], labels: Sequence[str]) -> None:
    """Raise UserError for a text whose label is none of the run's `labels`."""
    for text in texts:
        if text.label in labels:
            continue
        label, known = f"'{escape_control_chars(text.label[:50])}'", ", ".join(labels[:_LISTED])
        if text.is_record:
            raise UserError(f"the run has no label {label}: its labels are {known}", where=text.where)
        raise UserError(f"{text.where} has no label: its folder is called {label}, and the labels are {known}")


class UnknownDropper:
    """Removes the characters that are not in the vocabulary from texts, and counts them."""

    def __init__(self, tokenizer: Tokenizer, note: Notify) -> None:
        self._tokenizer, self._note = tokenizer, note
        self._dropped: set[str] = set()

    def __call__(self, text: str) -> str:
        text, unknown = drop_unknown(self._tokenizer, text)
        self._dropped.update(unknown)
        return text

    def report(self) -> None:
        """Note how many distinct characters were dropped."""
        if self._dropped:
            characters = plural(len(self._dropped), "distinct character")
            self._note(f"left out {characters} that the vocabulary lacks")
