"""The options that name texts and divide them, as the data section of a config."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from gpt_cli.cli.options.run_name import resolve_source
from gpt_cli.cli.options.shared_options import OptionTable
from gpt_cli.cli.output import note, refuse_several
from gpt_cli.config import Config, DataConfig, load_config
from gpt_cli.config.problems import to_error, translate_errors
from gpt_cli.config.yaml_reader import ParsedYaml
from gpt_cli.corpus.archive_folders import is_archive
from gpt_cli.corpus.hub import pin_config
from gpt_cli.corpus.readers import RECORD_SUFFIXES, UTF8_SUFFIXES
from gpt_cli.corpus.sources import find_path
from gpt_cli.corpus.stored_file import inner_suffix
from gpt_cli.errors import RequestError, UsageError, UserError
from gpt_cli.files.kinds import TEXTS, kind_of, refuse_unless
from gpt_cli.literals import DocumentUnit, SplitBy
from gpt_cli.terminal.words import plural

CorpusArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CORPUS", help="Files, folders, globs, -, builtin:NAME or hf:OWNER/NAME.", show_default=False
    ),
]
VAL_FRACTION, TEXT_KEY = 0.1, "text"
KEYS_OF_READING = ("data.text_key", "data.encoding")
DATA_OPTIONS: OptionTable = {
    "val_fraction": (Annotated[float, typer.Option(help="The last part, held out for validation.")], VAL_FRACTION),
    "test_fraction": (Annotated[float, typer.Option(help="The part after it, for `gpt eval --split test`.")], 0.0),
    "split": (Annotated[SplitBy, typer.Option(help="Units that stay in one split.")], "characters"),
    "val_source": (
        Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Text to validate on instead. Repeatable.")],
        None,
    ),
    "documents": (
        Annotated[DocumentUnit | None, typer.Option(help="Documents of plain text. [default: by the suffix]")],
        None,
    ),
    "encoding": (Annotated[str, typer.Option(help="Of the text files.")], "utf-8"),
    "text_key": (Annotated[str, typer.Option(metavar="KEY", help="Of .jsonl lines, or column of tables.")], TEXT_KEY),
}
"""The keys of a config's data section that `gpt tokenize` and `gpt data inspect` take as options."""


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
    note_unread(corpus, keys["text_key"], keys["encoding"])
    for source in corpus:
        refuse_unless(TEXTS - {"config"} if _is_config(source) else TEXTS, source, "text")
    if (weights := keys.get("weights")) and len(weights) != len(corpus):
        raise UsageError(f"--weight is given {plural(len(weights), 'time')} for {plural(len(corpus), 'text')}")
    config = config_of_options({"data": {"source": corpus[0] if len(corpus) == 1 else corpus, **keys}})
    refuse_twice(corpus)
    return pin_config(config, note).data  # all passes over a text are then of one commit


def _is_config(source: str) -> bool:
    """True for the file of a config; other YAML is text as any other."""
    try:
        return kind_of(source) == "config" and bool(load_config(Path(source)).model_fields_set)
    except UserError:
        return False


def note_unread(
    corpus: Iterable[str],
    text_key: str | None,
    encoding: str | None,
    names: tuple[str, str] = ("--text-key", "--encoding"),
) -> None:
    """Note a `text_key` or an `encoding`, given by these `names`, that has no effect on any of `corpus`."""
    files = [find_path(source) for source in corpus if "\0" not in source]
    if not files or not all(file.is_file() and not is_archive(file) for file in files):
        return
    suffixes = {inner_suffix(file) for file in files}
    if text_key not in (None, TEXT_KEY) and suffixes.isdisjoint(RECORD_SUFFIXES):
        note(f"{names[0]} has no effect: {files[0]} is plain text")
    if encoding is not None and encoding.lower().replace("-", "") != "utf8" and suffixes <= {*UTF8_SUFFIXES}:
        note(f"{names[1]} has no effect: {files[0]} is always UTF-8")


def refuse_twice(source: str | list[str]) -> None:
    """Raise RequestError for a text that is named twice: it would be validated on what it is trained on."""
    seen: set[Path] = set()
    for one in [source] if isinstance(source, str) else source:
        if (path := resolve_source(one)) in seen:
            raise RequestError(f"{one} is named twice: it would be validated on what it is trained on")
        seen.add(path)
