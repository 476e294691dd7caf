"""The files by which a directory is a run, and what they say of it."""

import json
import os
from itertools import chain, count
from pathlib import Path
from typing import Any

from gpt_cli.config import Config
from gpt_cli.files import DamagedError, check_listed, read_file

DATA, RUN = "data.json", "run.json"
_JSON_LIMIT = 1 << 20


def run_of(config: Config) -> Path | None:
    """The run in `config.run_dir`; None if there is none yet."""
    run = None if config.run_dir is None else Path(config.run_dir)
    return run if run is not None and (run / RUN).is_file() else None


def check_run_files(path: Path) -> None:
    """Raise DamagedError if a file of the run `path` that is written once is not what it was, or is missing."""
    try:
        check_listed(path)
    except DamagedError as error:
        error.kind, error.path = "damaged run", str(path)
        raise


def is_imported(run: Path) -> bool:
    """True if `run` was imported from another tool."""
    return (run / DATA).is_file() and read_fingerprint(run / DATA) == ""


def read_fingerprint(path: Path) -> str:
    """The fingerprint of the text that data.json, at `path`, tells. Raises DamagedError if it does not."""
    data = read_json_object(path)
    if "fingerprint" not in data:
        raise DamagedError(f"{path} is damaged: it does not tell the fingerprint of the text")
    return str(data["fingerprint"])


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file `path` of a run. Raises DamagedError for anything else."""
    try:
        value = json.loads(read_file(path, _JSON_LIMIT))
    except (ValueError, RecursionError) as error:
        check_run_files(path.parent)  # says more of a file that has a checksum
        raise DamagedError(f"{path} is damaged: it is not JSON", kind="damaged run", path=path.parent) from error
    if not isinstance(value, dict):
        raise DamagedError(f"{path} is damaged: it is not a JSON object", kind="damaged run", path=path.parent)
    return value


def free_name(path: Path, suffix: str = "") -> Path:
    """`path` with `suffix`, and with a number after it where there is something of that name already."""
    if path.name in ("", ".."):
        path = Path(os.path.abspath(path))
    names = (path.with_name(f"{path.name}{suffix}{number}") for number in chain([""], (f"-{i}" for i in count(2))))
    return next(name for name in names if not os.path.lexists(name))
