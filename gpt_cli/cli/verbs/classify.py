"""`gpt classify`: the label of a text, by a run that learned classes."""

import json as json_format
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpt_cli.cli.options.run_options import find_one
from gpt_cli.cli.options.sampling_options import DeviceOption
from gpt_cli.cli.output import note
from gpt_cli.cli.process import gc_paused
from gpt_cli.cli.unknown_characters import UnknownOption, without_unknown
from gpt_cli.errors import RequestError
from gpt_cli.files.kinds import TEXTS, kind_of, refuse_unless
from gpt_cli.terminal.words import plural

if TYPE_CHECKING:
    from gpt_cli.config import Config

_FILES = (".jsonl", ".csv", ".parquet", ".txt")


def classify(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|TEXT|FILE|-",
            help="Texts, files of them (.jsonl, .csv, .parquet; any other file is one text), or - for a text a line"
            " of standard input; optionally preceded by a run.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="RUN", help="A run or checkpoint. [default: the newest run]")
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Print the N likeliest labels of each text.")] = 1,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl", help="Print a JSON object a text, with every probability, and `where` it stands in a file."
        ),
    ] = False,
    text_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Of .jsonl lines, or column of tables. [default: the run's data.text_key]"),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of files and standard input. [default: the run's data.encoding; - is utf-8]")
    ] = None,
    unknown: UnknownOption = "error",
    device: DeviceOption = "auto",
) -> None:
    """Say which label each text has, and how likely that is.

    The run must have been trained with task.kind=classes; `gpt eval` says how often it is right.

    Example: gpt classify --run runs/classify "for x in names:" --top 3
    """
    with gc_paused():
        from gpt_cli.cli.options.data_options import refuse_encoding, refuse_text_key
        from gpt_cli.evaluation.text_classifier import TextClassifier
        from gpt_cli.run.find_run import is_run
        from gpt_cli.run.open_checkpoint import open_checkpoint
        from gpt_cli.run.overfitting import note_better_checkpoint

    if texts and run is None and (is_run(texts[0]) or _looks_like_run(texts[0])):
        run, texts = Path(texts[0]), texts[1:]
    for text in texts or ():
        refuse_unless(TEXTS, text, "text")
    path = find_one(None, run)
    saved = open_checkpoint(path, note, "classes")
    note_better_checkpoint(path, saved.step, note)
    if not texts:
        raise RequestError("there is nothing to classify", hint='gpt classify "a text", or a file, or - for lines')
    note(f"{path}, step {saved.step:,}")
    if text_key is not None:
        files = [text for text in texts if _is_file(text)]
        if not files:
            raise RequestError("--text-key is of files: none is given", hint="leave it out")
        refuse_text_key(files, text_key)
    if encoding is not None and not any(text == "-" or _is_file(text) for text in texts):
        raise RequestError("--encoding is of files and standard input: none is given")
    refuse_encoding([text for text in texts if text == "-" or _is_file(text)], encoding)
    inputs = list(_read(texts, saved.config, text_key, encoding))
    if not inputs:
        raise RequestError("there are no texts in what was given")
    classifier = TextClassifier.of(saved, device, note)
    known = without_unknown(saved.tokenizer, [text for _, text in inputs], skip=unknown == "skip", source="texts")
    inputs, known = _without_empty(inputs, known)
    verdicts = classifier.classify(known, [where for where, _ in inputs])
    for (where, text), verdict in zip(inputs, verdicts, strict=True):
        if jsonl:
            likeliest = verdict.probabilities if top == 1 else verdict.top(top)
            probabilities = {label: round(share, 6) for label, share in likeliest.items()}
            place = {} if where is None else {"where": where}
            line = {"text": text, **place, "label": verdict.label, "probabilities": probabilities}
            print(json_format.dumps(line), flush=True)
        else:
            _print(text, verdict.top(top), alone=len(inputs) == 1)


def _without_empty(
    inputs: list[tuple[str | None, str]], known: list[str]
) -> tuple[list[tuple[str | None, str]], list[str]]:
    """Both without the texts that are left empty by --unknown skip, if others are not; with a note."""
    filled = [i for i, text in enumerate(known) if text.strip() or not inputs[i][1].strip()]
    if not filled or len(filled) == len(known):
        return inputs, known
    empty = plural(len(known) - len(filled), "text")
    note(f"{empty} of {len(known):,} left out: the vocabulary has none of their characters")
    return [inputs[i] for i in filled], [known[i] for i in filled]


def _print(text: str, likeliest: dict[str, float], *, alone: bool) -> None:
    """The labels with their probabilities, and, where there are several texts, the text."""
    from gpt_cli.terminal.escape import escape_control_chars

    verdict = "  ".join(f"{share:.4f} {escape_control_chars(label)}" for label, share in likeliest.items())
    print(verdict if alone else f"{verdict}  {escape_control_chars(text)}", flush=True)


def _read(
    arguments: list[str], config: "Config", text_key: str | None, encoding: str | None
) -> Iterator[tuple[str | None, str]]:
    """(its place in a file, the text) for the texts that the arguments are, or name; of files without empty ones."""
    from gpt_cli.corpus.readers import ReaderOptions
    from gpt_cli.corpus.sources import read_documents

    options = ReaderOptions(encoding or config.data.encoding, text_key or config.data.text_key)
    for argument in arguments:
        if argument == "-":
            for document in read_documents("-", note=note, options=ReaderOptions(encoding or "utf-8")):
                lines = enumerate(document.text.split("\n"), start=1)
                texts = ((number, line.removesuffix("\r")) for number, line in lines if line.strip())
                yield from ((f"{document.name}:{number}", text) for number, text in texts)
        elif _is_file(argument):
            documents = read_documents(argument, note=note, options=options)
            yield from ((document.name, document.text) for document in documents)
        else:
            yield None, argument


def _looks_like_run(argument: str) -> bool:
    """True for the name of nothing in a folder that there is, or of a run without its folder: neither is a text."""
    if any(character.isspace() or character == "\0" for character in argument) or len(argument) > 1000:
        return False
    path = Path(argument)
    is_beside = len(path.parts) > 1 and path.parent.is_dir() and path.suffix.lower() not in _FILES
    return not os.path.lexists(path) and (is_beside or kind_of(Path("runs", argument)) == "run")


def _is_file(argument: str) -> bool:
    """True if it names a file or folder; one that is not there, as its suffix says, is an error, not a text."""
    if not argument or "\0" in argument or "\n" in argument or len(argument) > 1000:
        return False
    try:
        return Path(argument).exists() or (Path(argument).suffix.lower() in _FILES and " " not in argument)
    except OSError:
        return False
