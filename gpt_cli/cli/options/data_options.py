"""The options that say which texts are meant and how they are divided, as the data section of a config."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt_cli.cli.output import note
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files.kinds import TEXTS, kind_of, refuse_unless
from gpt_cli.literals import DocumentUnit, SplitBy
from gpt_cli.terminal.words import plural

if TYPE_CHECKING:
    from gpt_cli.config import DataConfig

ValFractionOption = Annotated[float, typer.Option(help="The last part of the text, held out for validation.")]
TestFractionOption = Annotated[float, typer.Option(help="The part after it, for `gpt eval --split test`.")]
SplitOption = Annotated[SplitBy, typer.Option(help="What is never divided between the splits.")]
ValSourceOption = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="A text to validate on instead; may be repeated.")
]
DocumentsOption = Annotated[
    DocumentUnit | None, typer.Option(help="Read plain text as documents of this kind. [default: by the suffix]")
]
EncodingOption = Annotated[str, typer.Option(help="Of the text files.")]
TextKeyOption = Annotated[str, typer.Option(metavar="KEY", help="Of .jsonl lines, or column of tables.")]

VAL_FRACTION, TEXT_KEY = 0.1, "text"  # their defaults


def data_config(corpus: list[str], **keys: Any) -> "DataConfig":
    """The data section that the options amount to. Raises RequestError, with the options' names, for what cannot be."""
    from pydantic import ValidationError

    from gpt_cli.config import Config
    from gpt_cli.config.problems import to_error, translate_errors
    from gpt_cli.config.yaml_reader import ParsedYaml
    from gpt_cli.corpus.hub import pin_config

    if keys.get("val_source") and keys["val_fraction"] != VAL_FRACTION:
        raise RequestError("--val-source is the validation text: --val-fraction has no meaning", hint="leave one out")
    refuse_text_key(corpus, keys["text_key"])
    refuse_encoding(corpus, keys.get("encoding"))
    for source in corpus:
        _refuse_key(source, keys)
        refuse_unless(TEXTS - {"config"} if _is_config(source) else TEXTS, source, "text")
        if any("\ud800" <= character < "\ue000" for character in source):
            raise RequestError(f"the CORPUS '{source}' is no name in UTF-8", hint="rename it to one in UTF-8")
    refuse_twice(corpus)
    weights = keys.get("weights")
    if weights and len(weights) != len(corpus):
        times = plural(len(weights), "time")
        texts = plural(len(corpus), "text")
        raise RequestError(f"--weight is given {times} for {texts}", hint="give one --weight for each text, in order")
    values = {"data": {"source": corpus[0] if len(corpus) == 1 else corpus, **keys}}
    try:
        return pin_config(Config.model_validate(values), note).data  # all passes over a text are then of one commit
    except ValidationError as error:
        name = "the command line"
        raise to_error(name, [*translate_errors(error, ParsedYaml(name, values))]) from error


def _refuse_key(source: str, options: Mapping[str, Any]) -> None:
    """Raise RequestError for a key of a config in place of a text, unless there is a file of that name."""
    key = re.fullmatch(r"([a-z]+)\.([a-z_]+)=(.*)", source)
    if key is None or os.path.lexists(source):
        return
    section, name, value = key.groups()
    is_option = section == "data" and name in options
    raise RequestError(
        "this takes texts and options: keys of a config are for gpt train",
        hint=f"--{name.replace('_', '-')} {quote(value)}" if is_option else "leave it out",
    )


def _is_config(source: str) -> bool:
    """True for the file of a config; other YAML is text as any other."""
    from gpt_cli.config import load_config

    path = Path(source)
    try:
        return kind_of(source) == "config" and path.is_file() and bool(load_config(path).model_fields_set)
    except UserError:
        return False


def refuse_text_key(corpus: Iterable[str], text_key: str | None, option: str = "--text-key") -> None:
    """Raise RequestError for a key of records, given by `option`, where each of `corpus` is a file of plain text."""
    from gpt_cli.corpus.readers import RECORD_SUFFIXES
    from gpt_cli.corpus.stored_file import inner_suffix

    files = [] if text_key in (None, TEXT_KEY) else _files(corpus)
    if files and not any(inner_suffix(file) in RECORD_SUFFIXES for file in files):
        records = ", ".join(RECORD_SUFFIXES)
        raise RequestError(f"{option} is for {records}, and {files[0]} is plain text", hint="leave it out")


def refuse_encoding(corpus: Iterable[str], encoding: str | None, option: str = "--encoding") -> None:
    """Raise RequestError for an encoding, given by `option`, where each of `corpus` is a file that is always UTF-8."""
    from gpt_cli.corpus.readers import UTF8_SUFFIXES
    from gpt_cli.corpus.stored_file import inner_suffix

    files = [] if encoding is None or encoding.lower().replace("-", "") == "utf8" else _files(corpus)
    if files and all(inner_suffix(file) in UTF8_SUFFIXES for file in files):
        kind = "Parquet" if inner_suffix(files[0]) == ".parquet" else "JSON lines"
        hint = f"leave it out; {kind} of another encoding, write anew, for instance with iconv"
        raise RequestError(f"{option} is for texts and CSV: {files[0]} is {kind}, always UTF-8", hint=hint)


def _files(corpus: Iterable[str]) -> list[Path]:
    """The files that `corpus` names; none if anything else is among them."""
    from gpt_cli.corpus.archive_folders import is_archive
    from gpt_cli.corpus.sources import find_path

    files = [find_path(source) for source in corpus if "\0" not in source]
    return files if all(file.is_file() and not is_archive(file) for file in files) else []


def refuse_twice(source: str | list[str]) -> None:
    """Raise RequestError for a text that is named twice: it would be validated on what it is trained on."""
    from gpt_cli.cli.options.fit_config import resolve_source

    seen: set[Path] = set()
    for one in [source] if isinstance(source, str) else source:
        if (path := resolve_source(one)) in seen:
            raise RequestError(f"{one} is named twice: it would be validated on what it is trained on")
        seen.add(path)
