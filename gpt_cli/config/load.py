"""From a file and overrides to a Config, or to one error that names all that is wrong."""

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from shlex import join, quote
from typing import Any

from pydantic import ValidationError

from gpt_cli.config.diagnostics import Diagnostic, to_error
from gpt_cli.config.keys import get_key, replace_keys, sections
from gpt_cli.config.overrides import apply_overrides, sets_null
from gpt_cli.config.paths import PATH_KEYS, rooted
from gpt_cli.config.removed import removed_uses, without_removed_keys
from gpt_cli.config.schema import Config
from gpt_cli.config.template import forget_format
from gpt_cli.config.validation_messages import look_up, translate_errors
from gpt_cli.config.yaml_subset import SIZE_LIMIT, ConfigSyntaxError, ParsedYaml, read_document
from gpt_cli.errors import RequestError, UserError
from gpt_cli.files import DamagedError, check_listed
from gpt_cli.files.put_back import how_to_put_back
from gpt_cli.files.safe_io import how_to_permit

# Values of the keys that the config.yaml of an older run lacks, where they are not today's defaults.
_OLD_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"model": {"rope_rounding": "power"}, "data": {"rules": 1}}


class NotAConfigError(RequestError):
    """A text is given where a config is expected."""


def _check_sum(path: Path) -> None:
    """Raise DamagedError unless the config.yaml of a run is what its SHA256SUMS says."""
    try:
        check_listed(path.parent, [path.name])
    except DamagedError as error:
        if error.member is not None and (command := how_to_put_back(path.parent, path.name)) is not None:
            error.hint = f"{error.hint}: {command}"
        raise


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config in the file `path` under `overrides` (`section.key=value`); `run_dir` null becomes `runs/NAME`.

    The config.yaml of a run means the run that it lies in, wherever that was moved or copied to.

    Raises RequestError with every problem, each with its place (file:line:column, or the override), and DamagedError
    for the config.yaml of a run that is not what its SHA256SUMS says.
    """
    run_dir = enclosing_run(path)
    if run_dir is not None:
        _check_sum(path)
    text = read_config_file(path, overrides)
    if run_dir is not None:  # where null is the directory that it lies in
        overrides = [one for one in overrides if not (one.startswith("run_dir=") and sets_null(one))]
    try:
        config = parse_config(text, str(path), overrides, of_run=run_dir is not None)
    except RequestError as error:
        if path.suffix.lower() not in _YAML and isinstance(error.__cause__, ConfigSyntaxError):
            hint = _for_a_text(path, overrides)
            raise NotAConfigError(error.message, where=error.where, hint=hint) from error.__cause__
        raise
    if run_dir is not None:
        written = parse_config(text, str(path), of_run=True) if overrides else config
        resolved = rooted(written, run_dir)
        overridden = {one.partition("=")[0] for one in overrides}
        config = replace_keys(config, {key: get_key(resolved, key) for key in PATH_KEYS if key not in overridden})
    if run_dir is not None and not any(one.startswith("run_dir=") for one in overrides):
        is_same = config.run_dir is not None and os.path.realpath(config.run_dir) == os.path.realpath(run_dir)
        return config if is_same else config.model_copy(update={"run_dir": str(run_dir)})
    if config.run_dir is not None:
        return config
    name = path.stem.encode(errors="replace").decode()  # a name that is not UTF-8 could not be written down
    return config.model_copy(update={"run_dir": f"runs/{name}"})


_YAML = (".yaml", ".yml")


def enclosing_run(path: Path) -> Path | None:
    """The run directory whose config.yaml `path` is, its own or that of one of its checkpoints."""
    if path.name != "config.yaml":
        return None
    folder = path.parent
    homes = (folder, folder.parent.parent) if folder.parent.name == "checkpoints" else (folder,)
    return next((home for home in homes if (home / "run.json").is_file()), None)


def parse_config(text: str, name: str, overrides: Sequence[str] = (), *, of_run: bool = False) -> Config:
    """The config that `text` says, under `overrides`. `name` stands for the file in errors, as for `load_config`.

    A config `of_run` was written by a run, with every key that existed; missing ones have the defaults of that time.
    """
    document = merge_layers(text, name, overrides, of_run=of_run)
    if of_run and overrides:
        document = forget_format(document, merge_layers(text, name, ()).values)
    for section, old in _OLD_DEFAULTS.items() if of_run else ():
        if isinstance(values := document.values.get(section), dict):
            document.values[section] = {**old, **values}
    try:
        config = Config.model_validate(document.values)
    except ValidationError as error:
        raise to_error(name, [*document.problems, *translate_errors(error, document)]) from None
    if document.problems:
        raise to_error(name, document.problems)
    split = ("data", "split")
    # In a file `characters` may just be the default written out, which a format of examples does not read.
    by_override = split in document.locations and document.location(split).line is None
    data = config.data
    if data.split != "characters" and by_override and look_up(document.values, split) == "characters":
        of = f"data.format {data.format}" if data.format != "text" else f"data.documents {data.documents}"
        raise RequestError(
            f"data.split characters is for texts: {of} is split by documents",
            where=str(document.location(split)),
            hint="leave it out: an example is never cut in two",
        )
    return config


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """{dotted key: value} of overrides, without the config that they are to change.

    Raises RequestError with all that is wrong with them in any config.
    """
    document = merge_layers("", "the overrides", overrides)
    problems = list(document.problems)
    try:
        Config.model_validate(document.values)
    except ValidationError as error:
        problems += translate_errors(error, document, is_part=True)
    if problems:
        raise to_error("what was asked for", problems)
    return {".".join(map(str, path)): look_up(document.values, path) for path in document.locations if len(path) <= 2}


def merge_layers(text: str, name: str, overrides: Sequence[str], *, of_run: bool = False) -> ParsedYaml:
    """Merge `text` and `overrides`, with locations and without removed keys, not yet validated.

    Raises RequestError if `text` is not YAML.
    """
    try:
        document = read_document(text, name)
    except ConfigSyntaxError as error:
        raise to_error(name, [error.problem]) from error
    empty: dict[str, Any] = {key: {} for key, value in document.values.items() if value is None and key in sections()}
    merged = apply_overrides(replace(document, values=document.values | empty), overrides)
    return without_removed_keys(merged, of_run=of_run)


def uses_of_removed_keys(path: Path) -> list[Diagnostic]:
    """A problem for each removed key in the config file `path` that asks for something."""
    return list(removed_uses(read_document(read_config_file(path), str(path))))


def read_config_file(path: Path, overrides: Sequence[str] = ()) -> str:
    """The text of a config file. Raises RequestError for what is missing, a folder, too large or not UTF-8.

    A failing disk is a UserError. `overrides` that follow are for the hint where it is no config.
    """
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
        fails = UserError if error.errno == errno.EIO else RequestError  # a failing disk is no wrong request
        reason = (error.strerror or str(error)).lower()
        hint = how_to_permit(path) if error.errno == errno.EACCES else None
        raise fails(f"cannot read the config file {path}: {reason}", hint=hint) from error
    if len(data) > SIZE_LIMIT:
        message = f"{path} is larger than {SIZE_LIMIT:,} bytes: this is no config file"
        if path.suffix.lower() not in _YAML:
            raise NotAConfigError(message, hint=_for_a_text(path, overrides))
        raise RequestError(message)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode().split("\n")
        raise RequestError(
            f"{path} is not UTF-8 text: it holds the byte 0x{data[error.start]:02x}",
            where=f"{path}:{len(before)}:{len(before[-1]) + 1}",
            hint="save it as UTF-8; a text to train on is data.source, not a config",
        ) from None


def _for_a_text(path: Path, overrides: Sequence[str] = ()) -> str:
    """The way out where a text is given for a config. `overrides` that say how it is read belong to that."""
    if any(one.startswith("train.init_from=") for one in overrides):  # that run decides on the rest of the config
        return f"a text is trained on without a config: {join(['gpt', 'train', str(path), *overrides])}"
    reads = [quote(one) for one in overrides if one.startswith(("data.", "task.kind="))]
    command = " ".join(["gpt config init", quote(str(path)), *reads, "-o", quote(f"{path.stem}.yaml")])
    return f"a config for a text is written by: {command}"


def _nearby(path: Path) -> str:
    """The way out when there is no file `path`: one with a similar name, or a new one."""
    if path.is_symlink():
        return f"it is a link to {os.readlink(path)}, where there is no file"
    folders = (path.parent / "configs", path.parent)  # of two with one name the nearer
    names = {file.stem: file for folder in folders for file in sorted(folder.glob("*.y*ml"))}
    if close := get_close_matches(path.stem, names, 1):
        return f"did you mean {names[close[0]]}?"
    runs = {run.parent.name: run.parent for run in sorted(path.parent.glob("*/run.json"))}
    if close := get_close_matches(path.name, runs, 1):
        return f"did you mean {runs[close[0]]}?"
    new = quote(str(path)) if path.suffix.lower() in _YAML else "config.yaml"
    return f"`gpt config init -o {new}` writes one to start from"
