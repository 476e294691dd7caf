"""The paths in the config of a run, which were written where it was started: found from anywhere."""

import glob
import json
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from gpt_cli.config.keys import get_key, replace_keys
from gpt_cli.config.schema import Config
from gpt_cli.files.kinds import RUN

TEXT_KEYS = ("data.source", "data.val_source")
PATH_KEYS = (*TEXT_KEYS, "tokenizer.file", "train.init_from")
_LIMIT = 1 << 20  # bytes of a run.json


def rooted(config: Config, home: Path) -> Config:
    """`config`, that of the run in `home`, with absolute paths where relative ones mean something else from here.

    The folder that they are relative to is the one in which `run_dir` leads to `home`, or else the one where the run
    was started, as its run.json tells: whichever has the file. What is in neither stays as it is written, but for a
    tokenizer: the run has a copy.
    """
    bases = list(_bases(config, home))
    paths = {key: _each(lambda path: _find(path, bases), get_key(config, key)) for key in PATH_KEYS}
    file = paths["tokenizer.file"]
    if file is not None and not os.path.exists(file) and (copy := home / "tokenizer.json").is_file():
        paths["tokenizer.file"] = str(copy)
    return replace_keys(config, paths)


def as_written(config: Config, there: Config, *, moved: Collection[str] = ()) -> Config:
    """`config` with the paths that `there` has, which are the same ones as they were written down.

    The keys `moved` name new places, which are made absolute unless this is the folder where `run_dir` is looked for.
    """
    paths = {key: get_key(there, key) for key in ("run_dir", *PATH_KEYS) if key not in moved}
    if config.run_dir is None or os.path.isabs(config.run_dir) or paths["run_dir"] != config.run_dir:
        paths |= {key: _each(os.path.abspath, get_key(config, key)) for key in moved}
    return replace_keys(config, paths)


def is_gone(value: Any) -> bool:
    """True if one of the paths in the `value` of a key leads to nothing any more."""
    return bool(_without_gone(value) != value)


def missing_texts(config: Config) -> dict[str, Any]:
    """{key: its value with PATH in the place of what is gone} for the texts of `config`."""
    values = {key: get_key(config, key) for key in TEXT_KEYS}
    return {key: _without_gone(value) for key, value in values.items() if is_gone(value)}


def _without_gone(value: Any) -> Any:
    return _each(lambda path: path if _leads_somewhere(path) else "PATH", value)


def _bases(config: Config, home: Path) -> Iterator[str]:
    if config.run_dir is not None and not os.path.isabs(config.run_dir):
        parts = Path(os.path.normpath(config.run_dir)).parts
        absolute = Path(os.path.abspath(home))
        if ".." not in parts and absolute.parts[-len(parts) :] == parts:
            yield str(Path(*absolute.parts[: -len(parts)]))
    try:
        with (home / RUN).open("rb") as file:
            started = json.loads(file.read(_LIMIT)).get("directory")
    except (OSError, ValueError, RecursionError, AttributeError):
        return
    if isinstance(started, str):
        yield started


def _each(change: Callable[[str], str], value: Any) -> Any:
    """The `value` of a key, a path or a list of paths or None, with `change` of each path."""
    if isinstance(value, list):
        return [_each(change, path) for path in value]
    return change(value) if value is not None and _is_path(value) else value


def _is_path(value: str) -> bool:
    scheme, colon, _ = value.partition(":")
    return value != "-" and "\0" not in value and not (colon and scheme in ("builtin", "corpus", "hf"))


def _leads_somewhere(path: str) -> bool:
    if os.path.exists(os.path.expanduser(path)):
        return True
    return glob.has_magic(path) and next(glob.iglob(path, recursive=True), None) is not None


def _find(path: str, bases: list[str]) -> str:
    """`path`, found from here if it is in one of `bases`."""
    if path.startswith("~") or os.path.isabs(path):
        return path
    for base in bases:
        there = os.path.join(base, path)
        if _leads_somewhere(there):
            return path if os.path.realpath(base) == os.path.realpath(os.curdir) else there
    return path
