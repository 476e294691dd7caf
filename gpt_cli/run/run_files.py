"""The files of a run that are written once, and what is read from the verified copies in its checkpoints instead."""

import json
from pathlib import Path
from typing import Any

from gpt_cli.config import Config
from gpt_cli.files import DamagedError, read_file
from gpt_cli.files.kinds import DATA as DATA
from gpt_cli.files.kinds import RUN as RUN
from gpt_cli.run.checkpoint import STATE, TOKENIZER, verified_copy

_JSON_LIMIT = 1 << 20


def run_of(config: Config) -> Path | None:
    """Return the run in `config.run_dir`; None if there is none yet."""
    run = None if config.run_dir is None else Path(config.run_dir)
    return run if run is not None and (run / RUN).is_file() else None


def is_imported(run: Path) -> bool:
    """True if `run` was imported from another tool."""
    return (run / DATA).is_file() and read_fingerprint(run) == ""


def tokenizer_file(run: Path) -> Path:
    """Return the tokenizer of the run: the verified copy in a checkpoint, or its own before there is one."""
    return verified_copy(run, TOKENIZER) or run / TOKENIZER


def read_fingerprint(run: Path) -> str:
    """Return the fingerprint of the run's text: that in a verified checkpoint, or in data.json before there is one.

    Raises DamagedError if it is in neither.
    """
    state = verified_copy(run, STATE)
    saved = {} if state is None else read_json_object(state)
    return str(saved["text_sha256"]) if "text_sha256" in saved else _fingerprint(run / DATA)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file `path` of a run. Raises DamagedError for anything else."""
    try:
        value = json.loads(read_file(path, _JSON_LIMIT))
        if not isinstance(value, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        message = f"{path} is damaged: it is not a JSON object"
        raise DamagedError(message, kind="damaged run", path=path.parent) from error
    return value


def _fingerprint(path: Path) -> str:
    data = read_json_object(path)
    if "fingerprint" not in data:
        message = f"{path} is damaged: it does not contain the fingerprint of the text"
        raise DamagedError(message, kind="damaged run", path=path.parent)
    return str(data["fingerprint"])
