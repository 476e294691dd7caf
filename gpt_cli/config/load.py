"""From a file and overrides to a Config, or to one error that names all that is wrong."""

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpt_cli.config.keys import sections
from gpt_cli.config.overrides import apply_overrides
from gpt_cli.config.problems import refuse
from gpt_cli.config.schema import Config
from gpt_cli.config.wording import problems_in
from gpt_cli.config.yaml_subset import SIZE_LIMIT, ConfigSyntaxError, Document, read_document
from gpt_cli.errors import RequestError


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config in the file `path` under `overrides` (`section.key=value`); `run_dir` null becomes `runs/NAME`.

    Raises RequestError with every problem, each with its place (file:line:column, or the override).
    """
    config = parse_config(read_config_file(path), str(path), overrides)
    if config.run_dir is not None:
        return config
    name = path.stem.encode(errors="replace").decode()  # a name that is not UTF-8 could not be written down
    return config.model_copy(update={"run_dir": f"runs/{name}"})


def parse_config(text: str, name: str, overrides: Sequence[str] = ()) -> Config:
    """The config that `text` says, under `overrides`. `name` stands for the file in errors, as for `load_config`."""
    document = read_layers(text, name, overrides)
    try:
        config = Config.model_validate(document.values)
    except ValidationError as error:
        raise refuse(name, [*document.problems, *problems_in(error, document)]) from None
    if document.problems:
        raise refuse(name, document.problems)
    return config


def read_layers(text: str, name: str, overrides: Sequence[str]) -> Document:
    """What `text` and `overrides` say and where, not yet checked. Raises RequestError if `text` is not YAML."""
    try:
        document = read_document(text, name)
    except ConfigSyntaxError as error:
        raise refuse(name, [error.problem]) from error
    empty: dict[str, Any] = {key: {} for key, value in document.values.items() if value is None and key in sections()}
    return apply_overrides(replace(document, values=document.values | empty), overrides)


def read_config_file(path: Path) -> str:
    """The text of a config file. Raises RequestError for what is missing, a folder, too large or not UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        raise RequestError(f"there is no config file {path}", hint=_nearby(path)) from None
    except IsADirectoryError:
        inside = path / "config.yaml"
        hint = f"its config is {inside}" if inside.is_file() else None
        raise RequestError(f"{path} is a folder, not a config file", hint=hint) from None
    except OSError as error:
        raise RequestError(f"cannot read the config file {path}: {error.strerror}") from error
    if len(data) > SIZE_LIMIT:
        raise RequestError(f"{path} is larger than {SIZE_LIMIT:,} bytes: this is no config file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode().split("\n")
        raise RequestError(
            f"{path} is not UTF-8 text: it holds the byte 0x{data[error.start]:02x}",
            where=f"{path}:{len(before)}:{len(before[-1]) + 1}",
            hint="save it as UTF-8; a text to train on is data.source, not a config",
        ) from None


def _nearby(path: Path) -> str:
    """The way out when there is no file `path`: one with a similar name, or a new one."""
    folders = (path.parent, path.parent / "configs")
    names = {file.stem: file for folder in folders for file in sorted(folder.glob("*.y*ml"))}
    if close := get_close_matches(path.stem, names, 1):
        return f"did you mean {names[close[0]]}?"
    return f"`gpt config init -o {path}` writes one to start from"
