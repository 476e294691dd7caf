"""The options that name texts and divide them, as the data section of a config."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from gpt_cli.cli.options.fit_config import resolve_source
from gpt_cli.cli.output import note, refuse_several
from gpt_cli.config import Config, DataConfig, load_config
from gpt_cli.config.problems import to_error, translate_errors
from gpt_cli.config.yaml_reader import ParsedYaml
from gpt_cli.corpus.archive_folders import is_archive
from gpt_cli.corpus.hub import pin_config
from gpt_cli.corpus.readers import RECORD_SUFFIXES, UTF8_SUFFIXES
from gpt_cli.corpus.sources import find_path
from gpt_cli.corpus.stored_file import inner_suffix
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files.kinds import TEXTS, kind_of, refuse_unless
from gpt_cli.literals import DocumentUnit, SplitBy
from gpt_cli.terminal.words import plural

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


def config_of_options(values: dict[str, dict[str, Any]]) -> Config:
    """The config of {section: {key: value}}. Raises RequestError for what cannot be."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        name = "the command line"
        raise to_error(name, [*translate_errors(error, ParsedYaml(name, values))]) from error


def data_config(corpus: list[str], **keys: Any) -> DataConfig:
    """The data section that the options amount to. Raises RequestError for what cannot be."""
    refuse_several({"--val-source": bool(keys["val_source"]), "--val-fraction": keys["val_fraction"] != VAL_FRACTION})
    refuse_text_key(corpus, keys["text_key"])
    refuse_encoding(corpus, keys["encoding"])
    for source in corpus:
        refuse_unless(TEXTS - {"config"} if _is_config(source) else TEXTS, source, "text")
    if (weights := keys.get("weights")) and len(weights) != len(corpus):
        raise RequestError(f"--weight is given {plural(len(weights), 'time')} for {plural(len(corpus), 'text')}")
    config = config_of_options({"data": {"source": corpus[0] if len(corpus) == 1 else corpus, **keys}})
    refuse_twice(corpus)
    return pin_config(config, note).data  # all passes over a text are then of one commit


def _is_config(source: str) -> bool:
    """True for the file of a config; other YAML is text as any other."""
    try:
        return kind_of(source) == "config" and bool(load_config(Path(source)).model_fields_set)
    except UserError:
        return False


def refuse_text_key(corpus: Iterable[str], text_key: str | None, option: str = "--text-key") -> None:
    """Raise RequestError for a key of records, given by `option`, where all of `corpus` is plain text."""
    files = [] if text_key in (None, TEXT_KEY) else _files(corpus)
    if files and not any(inner_suffix(file) in RECORD_SUFFIXES for file in files):
        raise RequestError(f"{option} is for {', '.join(RECORD_SUFFIXES)}, and {files[0]} is plain text")


def refuse_encoding(corpus: Iterable[str], encoding: str | None, option: str = "--encoding") -> None:
    """Raise RequestError for an encoding, given by `option`, where all of `corpus` is always UTF-8."""
    files = [] if encoding is None or encoding.lower().replace("-", "") == "utf8" else _files(corpus)
    if files and all(inner_suffix(file) in UTF8_SUFFIXES for file in files):
        raise RequestError(f"{option} is for texts and CSV: {files[0]} is always UTF-8")


def _files(corpus: Iterable[str]) -> list[Path]:
    """The files that `corpus` names; none if anything else is among them."""
    files = [find_path(source) for source in corpus if "\0" not in source]
    return files if all(file.is_file() and not is_archive(file) for file in files) else []


def refuse_twice(source: str | list[str]) -> None:
    """Raise RequestError for a text that is named twice: it would be validated on what it is trained on."""
    seen: set[Path] = set()
    for one in [source] if isinstance(source, str) else source:
        if (path := resolve_source(one)) in seen:
            raise RequestError(f"{one} is named twice: it would be validated on what it is trained on")
        seen.add(path)
