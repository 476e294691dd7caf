"""Load a Config from a file and overrides, or raise one error with every problem."""

import errno
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpt_cli.config.derived import forget_format
from gpt_cli.config.keys import (
    accept_units,
    accepted_types,
    fields,
    get_key,
    replace_keys,
    schema_of,
    sections,
    suggest_keys,
)
from gpt_cli.config.paths import PATH_KEYS, rooted
from gpt_cli.config.problems import to_error, translate_errors
from gpt_cli.config.removed import is_removed, removed_uses, without_removed_keys
from gpt_cli.config.schema import Config
from gpt_cli.config.synonyms import suggest
from gpt_cli.config.yaml_reader import (
    SIZE_LIMIT,
    ConfigError,
    ParsedYaml,
    SourceLocation,
    invalid_char_reason,
    read_document,
    read_value,
    resolve_scalar,
)
from gpt_cli.errors import ErrorKind, RequestError, UserError
from gpt_cli.files import DamagedError
from gpt_cli.files.kinds import RUN
from gpt_cli.files.os_errors import reason_of

# Values of the keys that the config.yaml of an older run lacks, where they are not today's defaults.
_OLD_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"model": {"rope_rounding": "power"}, "data": {"rules": 1}}
_YAML = (".yaml", ".yml")
_RECENT = 2 * 10**9  # nanoseconds
_texts: dict[Path, tuple[tuple[int, ...], str]] = {}
"""{file: its stamp, its text}"""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load the config in the file `path` under `overrides` (`section.key=value`); `run_dir` null becomes `runs/NAME`.

    The config.yaml of a run means the run that it lies in, wherever that was moved or copied to.

    Raises RequestError with every problem, each with its place.
    """
    run_dir = enclosing_run(path)
    if run_dir is None:
        config = parse_config(read_config_file(path), str(path), overrides)
        name = path.stem.encode(errors="replace").decode()  # a name that is not UTF-8 could not be written down
        return config if config.run_dir is not None else config.model_copy(update={"run_dir": f"runs/{name}"})
    text = read_config_file(path)
    overrides = [one for one in overrides if not (one.startswith("run_dir=") and sets_null(one))]  # where it lies
    config = parse_config(text, str(path), overrides, of_run=True)
    found = rooted(parse_config(text, str(path), of_run=True) if overrides else config, run_dir)
    overridden = {one.partition("=")[0] for one in overrides}
    config = replace_keys(config, {key: get_key(found, key) for key in PATH_KEYS if key not in overridden})
    is_same = config.run_dir is not None and os.path.realpath(config.run_dir) == os.path.realpath(run_dir)
    return config if is_same or "run_dir" in overridden else config.model_copy(update={"run_dir": str(run_dir)})


def enclosing_run(path: Path) -> Path | None:
    """The run directory whose config.yaml `path` is, its own or that of one of its checkpoints."""
    if path.name != "config.yaml":
        return None
    folder = path.parent
    homes = (folder, folder.parent.parent) if folder.parent.name == "checkpoints" else (folder,)
    return next((home for home in homes if (home / RUN).is_file()), None)


def parse_config(text: str, name: str, overrides: Sequence[str] = (), *, of_run: bool = False) -> Config:
    """Parse the config in `text` under `overrides`. `name` stands for the file in errors.

    A config `of_run` was written by a run, with every key that existed; missing ones have the defaults of that time.
    Raises RequestError as `load_config` does.
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
    overridden = {".".join(map(str, path)): path for path in document.locations if len(path) <= 2}
    return {key: document.value(path) for key, path in overridden.items()}


def merge_layers(text: str, name: str, overrides: Sequence[str], *, of_run: bool = False) -> ParsedYaml:
    """Merge `text` and `overrides`, the last one of a key wins, with locations; not yet validated.

    Raises RequestError if `text` is not YAML.
    """
    try:
        document = read_document(text, name)
    except ConfigError as problem:
        refusal = to_error(name, [problem])
        if Path(name).suffix.lower() not in _YAML:
            refusal.path, refusal.kind = name, "text"
        raise refusal from problem
    empty: dict[str, Any] = {key: {} for key, value in document.values.items() if value is None and key in sections()}
    values = {
        name: {key: accept_units(f"{name}.{key}", one) for key, one in value.items()}
        if isinstance(value, dict)
        else accept_units(name, value)
        for name, value in (document.values | empty).items()
    }
    document = replace(document, values=values)
    for override in overrides:
        document = _apply(document, override)
    return without_removed_keys(document, of_run=of_run)


def _apply(document: ParsedYaml, override: str) -> ParsedYaml:
    """A new document in which `override` has taken the place of what stood there."""
    place = SourceLocation(f"override {override!r}")
    key, _, text = override.partition("=")
    try:
        _check_override(override, place)
        value = resolve_scalar(text) if is_removed(key) else _read_override(key, text, place)
    except ConfigError as problem:
        return replace(document, problems=(*document.problems, problem))
    return document.put(tuple(key.split(".")), value, place)


def _check_override(override: str, place: SourceLocation) -> None:
    """Raise a ConfigError for what is not `key=value` with a key that there is."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r} is not an override: it needs a key, '=' and a value", place)
    if key in sections():
        example = next(name for name in fields() if name.startswith(f"{key}."))
        raise ConfigError(f"{key} is a section: override one of its keys, such as {example}=...", place, (key,))
    if not is_removed(key) and key not in fields():
        raise ConfigError(f"{key} is not a key", place, choices=tuple(suggest_keys(tuple(key.split(".")))))
    if flaw := invalid_char_reason(text):
        raise ConfigError(f"{key} {flaw}", place, (key,))


def _read_override(key: str, text: str, place: SourceLocation) -> Any:
    """The value of an override. Raises a ConfigError.

    In quotes, or in brackets where a list may stand, it is read as YAML. Any other is taken as it is: text for a key
    that takes text, so that `sample.prompt=1984` needs no quotes in quotes, else a plain scalar. null is null.
    """
    types = accepted_types(schema_of(key))
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    is_list = text.startswith("[") and text.endswith("]") and any(word.startswith("a list") for word in types)
    if is_quoted or is_list:
        try:
            return read_value(text, place)
        except ConfigError as problem:
            raise replace(problem, message=f"{key} is {problem.message}", keys=(key,)) from problem
    value = resolve_scalar(text.strip())
    is_null = value is None and text and ("null" in types or text.strip() == "null")  # else refused: it may be meant
    return text if "text" in types and not is_null else accept_units(key, value)


def sets_null(override: str) -> bool:
    """True if the value of `section.key=value` is null, in any of its spellings."""
    text = override.partition("=")[2].strip()
    return text != "" and resolve_scalar(text) is None


def uses_of_removed_keys(path: Path) -> list[ConfigError]:
    """A problem for each removed key in the config file `path` that asks for something."""
    return list(removed_uses(read_document(read_config_file(path), str(path))))


def read_config_file(path: Path) -> str:
    """Read the text of a config file: once, as long as the file stays as it is.

    Raises RequestError for what is missing, a folder, too large or not UTF-8; a failing disk is a UserError.
    """
    try:
        status = path.stat()
        stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    except (OSError, ValueError):
        return _read(path)
    if _texts.get(path, (None, ""))[0] != stamp:
        text = _read(path)
        if time.time_ns() - status.st_mtime_ns < _RECENT:  # another change might leave the same times
            return text
        _texts[path] = stamp, text
    return _texts[path][1]


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        if enclosing_run(path) is not None:
            missing = f"{path.parent} is damaged: {path.name} is missing"
            raise DamagedError(missing, kind="damaged run", path=path.parent) from None
        link = f": it is a link to {os.readlink(path)}" if path.is_symlink() else ""
        choices = _similar(path)
        kind: ErrorKind | None = "no config" if path.parent.is_dir() and not choices else None
        raise RequestError(f"there is no config file {path}{link}", path=path, choices=choices, kind=kind) from None
    except IsADirectoryError:
        inside = [str(path / "config.yaml")] if (path / "config.yaml").is_file() else []
        raise RequestError(f"{path} is a folder, not a config file", path=path, choices=inside) from None
    except OSError as error:
        is_request = error.errno != errno.EIO and enclosing_run(path) is None  # else the disk or the run is at fault
        fails = RequestError if is_request else UserError
        raise fails(f"cannot read the config file {path}: {reason_of(error, path)}", path=path) from error
    if len(data) > SIZE_LIMIT:
        kind = None if path.suffix.lower() in _YAML else "text"
        raise RequestError(f"{path} is larger than {SIZE_LIMIT:,} bytes: this is not a config", path=path, kind=kind)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode().split("\n")
        raise RequestError(
            f"{path} is not UTF-8 text: it holds the byte 0x{data[error.start]:02x}",
            where=f"{path}:{len(before)}:{len(before[-1]) + 1}",
        ) from None


def _similar(path: Path) -> list[str]:
    """Configs and runs whose name is like that of `path`, which is missing."""
    folders = (path.parent / "configs", path.parent)  # of two with one name the nearer
    configs = {file.stem: str(file) for folder in folders for file in sorted(folder.glob("*.y*ml"))}
    runs = {run.parent.name: str(run.parent) for run in sorted(path.parent.glob(f"*/{RUN}"))}
    meant = suggest(path.stem, configs) or suggest(path.name, runs)
    return [(configs | runs)[name] for name in meant]
