"""`gpt classify`: the label of a text, by a run that learned classes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gpt_cli.cli.options.data_options import note_unread
from gpt_cli.cli.options.run_options import RunOption, find_checkpoint
from gpt_cli.cli.options.shared_options import DeviceOption
from gpt_cli.cli.output import note
from gpt_cli.cli.process import gc_paused
from gpt_cli.cli.unknown_characters import UnknownOption, without_unknown
from gpt_cli.config import DataConfig
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.sources import read_documents
from gpt_cli.errors import RequestError, UsageError
from gpt_cli.files.kinds import TEXTS, kind_of, refuse_unless
from gpt_cli.run.find_run import is_run
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.words import plural

_FILES = (".jsonl", ".csv", ".parquet", ".txt")


def classify(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN|TEXT|FILE|-", help="A run, then texts, files, or - for lines.", show_default=False),
    ] = None,
    run: RunOption = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Print the N likeliest labels of each text.")] = 1,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print a JSON object a text, with all probabilities.")] = False,
    text_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The key or column of texts. [default: the run's data.text_key]")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of files and standard input. [default: the run's data.encoding; - is utf-8]")
    ] = None,
    unknown: UnknownOption = "error",
    device: DeviceOption = "auto",
) -> None:
    """Predict the label of each text, with its probability.

    The run must have been trained with task.kind=classes; `gpt eval` measures how often it is right.

    Example: gpt classify --run runs/classify "for x in names:" --top 3
    """
    with gc_paused():
        from gpt_cli.evaluation.text_classifier import TextClassifier

    if texts and run is None and _names_run(texts[0]):
        run, texts = Path(texts[0]), texts[1:]
    for text in texts or ():
        refuse_unless(TEXTS, text, "text")
    path, saved = find_checkpoint(None, run, "classes")
    if not texts:
        raise UsageError("there is nothing to classify: give a text, a file, or - for lines of standard input")
    note(f"{path}, step {saved.step:,}")
    note_unread([text for text in texts if text == "-" or _names_file(text)], text_key, encoding)
    inputs = list(_read(texts, saved.config.data, text_key, encoding))
    if not inputs:
        raise RequestError("there are no texts in what was given")
    classifier = TextClassifier.of(saved, device, note)
    known = without_unknown(saved.tokenizer, [text for _, text in inputs], unknown, "texts")
    kept = [i for i, text in enumerate(known) if text.strip() or not inputs[i][1].strip()] or range(len(known))
    if left_out := len(known) - len(kept):
        note(f"{plural(left_out, 'text')} of {len(known):,} left out: the vocabulary has none of their characters")
    verdicts = classifier.classify([known[i] for i in kept], [inputs[i][0] for i in kept])
    for (where, text), verdict in zip([inputs[i] for i in kept], verdicts, strict=True):
        if jsonl:
            likeliest = verdict.top(None if top == 1 else top)
            line = {"text": text} | ({} if where is None else {"where": where})
            probabilities = {label: round(share, 6) for label, share in likeliest.items()}
            print(json.dumps({**line, "label": verdict.label, "probabilities": probabilities}), flush=True)
        else:
            row = [f"{share:.4f} {escape_control_chars(label)}" for label, share in verdict.top(top).items()]
            print("  ".join(row if len(kept) == 1 else [*row, escape_control_chars(text)]), flush=True)


def _read(
    arguments: list[str], data: DataConfig, text_key: str | None, encoding: str | None
) -> Iterator[tuple[str | None, str]]:
    """(its place in a file, the text) for the texts that the arguments are, or name; of files without empty ones."""
    options = ReaderOptions(encoding or data.encoding, text_key or data.text_key)
    for argument in arguments:
        if argument == "-":
            for document in read_documents("-", note=note, options=ReaderOptions(encoding or "utf-8")):
                for number, line in enumerate(document.text.split("\n"), start=1):
                    if line.strip():
                        yield f"{document.name}:{number}", line.removesuffix("\r")
        elif _names_file(argument):
            documents = read_documents(argument, note=note, options=options)
            yield from ((document.name, document.text) for document in documents)
        else:
            yield None, argument


def _names_run(argument: str) -> bool:
    """True for a run, also without its folder, and for the name of nothing in a folder that there is: it is no text."""
    path = Path(argument)
    if is_run(argument) or argument.split() != [argument] or kind_of(argument) is not None:
        return is_run(argument)
    is_beside = len(path.parts) > 1 and os.path.isdir(path.parent) and path.suffix.lower() not in _FILES
    return is_beside or kind_of(Path("runs", argument)) == "run"


def _names_file(argument: str) -> bool:
    """True for a file or folder; one that is not there, as its suffix says, is an error, not a text."""
    looks_like_file = Path(argument).suffix.lower() in _FILES and argument.split() == [argument]
    kind = kind_of(argument)  # a config by its name alone, for which a text may stand
    return looks_like_file or (os.path.lexists(argument) if kind == "config" else kind is not None)
