"""The paths in the config of a run, which were written where it was started: found from anywhere."""

import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path

from gpt_cli.config.schema import Config

_LIMIT = 1 << 20  # bytes of a run.json


def rooted(config: Config, home: Path) -> Config:
    """`config`, that of the run in `home`, with absolute paths where relative ones mean something else from here.

    The folder that they are relative to is the one in which `run_dir` leads to `home`, or else the one where the run
    was started, as its run.json tells: whichever has the file. What is in neither stays as it is written, but for a
    tokenizer: the run has a copy.
    """
    bases = list(_bases(config, home))
    data, tokenizer, train = config.data, config.tokenizer, config.train
    source = _moved(data.source, bases) if isinstance(data.source, str) else [_moved(one, bases) for one in data.source]
    val_source = data.val_source
    if isinstance(val_source, str):
        val_source = _moved(val_source, bases)
    elif val_source is not None:
        val_source = [_moved(one, bases) for one in val_source]
    file = None if tokenizer.file is None else _moved(tokenizer.file, bases)
    if file is not None and not os.path.exists(file) and (copy := home / "tokenizer.json").is_file():
        file = str(copy)
    init_from = None if train.init_from is None else _moved(train.init_from, bases)
    return config.model_copy(
        update={
            "data": data.model_copy(update={"source": source, "val_source": val_source}),
            "tokenizer": tokenizer.model_copy(update={"file": file}),
            "train": train.model_copy(update={"init_from": init_from}),
        }
    )


def as_written(config: Config, there: Config) -> Config:
    """`config` with the paths that `there` has, which are the same ones as they were written down."""
    data = {"source": there.data.source, "val_source": there.data.val_source}
    return config.model_copy(
        update={
            "run_dir": there.run_dir,
            "data": config.data.model_copy(update=data),
            "tokenizer": config.tokenizer.model_copy(update={"file": there.tokenizer.file}),
            "train": config.train.model_copy(update={"init_from": there.train.init_from}),
        }
    )


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


def _moved(path: str, bases: list[str]) -> str:
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
