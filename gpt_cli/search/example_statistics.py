"""The statistics of pairs, chats or labelled texts that a config is fitted to."""

from collections.abc import Sequence
from itertools import chain

from gpt_cli.config.schema import DataConfig
from gpt_cli.config.section import ConfigValues
from gpt_cli.corpus.blocks import Split
from gpt_cli.corpus.examples import TrainingExample, divide_examples
from gpt_cli.corpus.labelled import LabelledText, divide_labelled
from gpt_cli.corpus.vocab_size import COUNTED
from gpt_cli.literals import SUBWORD_KINDS
from gpt_cli.search.text_statistics import ExampleLengths, TextStatistics
from gpt_cli.search.tokenizer_choice import choose_tokenizer, estimate_bytes_per_token
from gpt_cli.terminal.words import plural

_SPREAD = 1.3  # by which a single example may have more tokens for its bytes than all of them


def measure_examples(data: DataConfig, fixed: ConfigValues, said: str, *, has_gpu: bool) -> TextStatistics:
    """The statistics of the examples of `data`, whose format is not text.

    `fixed` are all values that are not to be chosen, `said` a sentence on how they are read, and a blank. Raises what
    reading and dividing the examples raise.
    """
    splits, n_labels = _divide(data)
    texts = {split: [member.text for member in members] for split, members in splits.items()}
    every = list(chain.from_iterable(texts.values()))
    beginning = "\n".join(texts["train"])[:COUNTED]
    values, tokenizer_reason = choose_tokenizer(
        beginning,
        sum(map(len, every)),
        len(set().union(*map(set, every))),
        has_gpu,
        fixed,
        reads_others=True,
    )
    kind = fixed.get("tokenizer.kind", values["tokenizer.kind"])
    per_token = estimate_bytes_per_token(beginning, {**values, **fixed}) if kind in SUBWORD_KINDS else 1.0

    def count(text: str) -> float:
        return len(text) if kind == "char" else len(text.encode()) / per_token

    lengths = {split: list(map(count, members)) for split, members in texts.items()}
    tokens = {split: sum(of_split) for split, of_split in lengths.items()}
    unread = 0 if data.format == "labelled" else 1  # the last token of a completion is only predicted
    read = {split: [length - unread for length in of_split] for split, of_split in lengths.items()}
    longest = max(map(max, read.values())) * (_SPREAD if kind in SUBWORD_KINDS else 1.0)
    of_source = [members for split, members in splits.items() if split != "val" or not data.val_sources]
    n = len({member.where for members in of_source for member in members})
    return TextStatistics(
        tokens=sum(tokens.values()),
        training_tokens=tokens["train"],
        validation_tokens=tokens["val"],
        values=values,
        tokenizer_reason=f"{_explain_task(data, n, n_labels)} {said}{tokenizer_reason}",
        split_reason=_explain_split(data, len(texts["val"]), len(every)),
        is_exact=kind not in SUBWORD_KINDS,
        examples=ExampleLengths(read["train"], [count(_first_prompt(one)) for one in splits["train"]], longest),
    )


def _divide(data: DataConfig) -> tuple[dict[Split, Sequence[TrainingExample | LabelledText]], int]:
    """(the examples of each split, the number of labels); messages come when they are read for training."""
    if data.format != "labelled":
        return {**divide_examples(data, lambda _: None)[0]}, 0
    splits, _ = divide_labelled(data, lambda _: None)
    return {**splits}, len({text.label for text in splits["train"]})


def _explain_task(data: DataConfig, n: int, n_labels: int) -> str:
    if data.format == "labelled":
        return f"It learns the {n_labels} labels of {n:,} texts (task.kind=classes)."
    learned = {"chat": "what the assistant says in", "pairs": "the completions of"}[data.format]
    name = {"chat": "chats", "pairs": "pairs"}[data.format]
    learned = "all of" if data.loss_on == "all" else learned
    return f"It learns {learned} {n:,} {name} (data.format={data.format})."


def _first_prompt(member: TrainingExample | LabelledText) -> str:
    return member.turns[0][0] if isinstance(member, TrainingExample) else ""


def _explain_split(data: DataConfig, n: int, n_all: int) -> str:
    """A sentence on the `n` validation examples of `n_all`."""
    if data.val_sources:
        which = "the same" if data.val_source == data.source else "another"
        return f"{plural(n, 'example')} of {which} source are its validation."
    tests = f", {100 * data.test_fraction:.3g}% for the test" if data.test_fraction else ""
    if abs(n / n_all - data.val_fraction) > data.val_fraction / 2:  # few differ: equal ones are in one split
        return f"{n:,} of them {'is' if n == 1 else 'are'} held out for validation{tests}."
    return f"About {100 * data.val_fraction:.3g}% of them are held out for validation{tests}."
