"""The paths in the config of a run, which were written where it was started: found from anywhere."""

import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpt_cli.config.keys import get_key, replace_keys
from gpt_cli.config.schema import Config

PATH_KEYS = ("data.source", "data.val_source", "tokenizer.file", "train.init_from")
_LIMIT = 1 << 20  # bytes of a run.json


def rooted(config: Config, home: Path) -> Config:
    """`config`, that of the run in `home`, with absolute paths where relative ones mean something else from here.

    The folder that they are relative to is the one in which `run_dir` leads to `home`, or else the one where the run
    was started, as its run.json tells: whichever has the file. What is in neither stays as it is written, but for a
    tokenizer: the run has a copy.
    """
    bases = list(_bases(config, home))
    paths = {key: _moved(get_key(config, key), bases) for key in PATH_KEYS}
    file = paths["tokenizer.file"]
    if file is not None and not os.path.exists(file) and (copy := home / "tokenizer.json").is_file():
        paths["tokenizer.file"] = str(copy)
    return replace_keys(config, paths)


def as_written(config: Config, there: Config) -> Config:
    """`config` with the paths that `there` has, which are the same ones as they were written down."""
    return replace_keys(config, {key: get_key(there, key) for key in ("run_dir", *PATH_KEYS)})


def _bases(config: Config, home: Path) -> Iterator[str]:
    if config.run_dir is not None and not os.path.isabs(config.run_dir):
        parts = Path(os.path.normpath(config.run_dir)).parts
        absolute = Path(os.path.abspath(home))
        if ".." not in parts and absolute.parts[-len(parts) :] == parts:
            yield str(Path(*absolute.parts[: -len(parts)]))
    try:
        with (home / "run.json").open("rb") as file:
            started = json.loads(file.read(_LIMIT)).get("directory")
    except (OSError, ValueError, RecursionError, AttributeError):
        return
    if isinstance(started, str):
        yield started


def _moved(value: Any, bases: list[str]) -> Any:
    """The `value` of a key, a path or a list of paths or None, found from here if it is in one of `bases`."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_moved(path, bases) for path in value]
    path: str = value
    scheme = path.partition(":")[0]
    if path == "-" or path.startswith("~") or os.path.isabs(path) or "\0" in path:
        return path
    if scheme in ("builtin", "corpus", "hf") and ":" in path:
        return path
    for base in bases:
        there = os.path.join(base, path)
        if os.path.lexists(there) or (glob.has_magic(path) and next(glob.iglob(there, recursive=True), None)):
            return path if os.path.realpath(base) == os.path.realpath(os.curdir) else there
    return path
