"""The kinds of paths, told apart here alone, by the names of files, so that no two commands disagree."""

import errno
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from gpt_cli.errors import RequestError
from gpt_cli.files.os_errors import translate_os_errors

Whole = Literal["run", "damaged run", "checkpoint", "token store", "foreign model", "runs folder", "config", "text"]
Kind = Literal[Whole, "part"]
RUN, DATA, CONFIG, TOKENIZER = "run.json", "data.json", "config.yaml", "tokenizer.json"
BEST = "best"
YAML = (".yaml", ".yml")
TEXTS = frozenset[Kind | None](["text", "config", "runs folder", None])
"""Kinds that are read as text: YAML need not be a config, beside runs there may be texts, and None may be a glob."""
_METRICS, _CHECKPOINTS = "metrics.jsonl", "checkpoints"
_STATE, _MODEL, _SUMS = "state.json", "model.safetensors", "SHA256SUMS"
_FOLDERS: tuple[tuple[Whole, set[str]], ...] = (
    *[("run", {RUN, other}) for other in (CONFIG, DATA, _METRICS, _CHECKPOINTS)],
    ("damaged run", {CONFIG, DATA, "metrics.jsonl"}),
    *[("foreign model", {"config.json", one}) for one in (_MODEL, f"{_MODEL}.index.json", "pytorch_model.bin")],
    ("foreign model", {"adapter_config.json", "adapter_model.safetensors"}),
    *[("checkpoint", {_STATE, other}) for other in (_MODEL, _SUMS)],
    ("token store", {"tokens.json"}),
)
"""The names by which a folder is of a kind, the first that fits."""
_PARTS = {RUN, DATA, CONFIG, TOKENIZER, _CHECKPOINTS, _STATE, _SUMS, "lock", _METRICS, "events.jsonl"}
_TEXT_FILES = (".txt", ".md", ".jsonl", ".csv", ".parquet")
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def kind_of(path: str | Path) -> Kind | None:
    """The kind of what is at `path`; None where nothing is, or can be. Raises DiskError where that cannot be seen.

    A name that ends in .yaml or .yml is that of a config, also where there is none. RUN@STEP and RUN@best are names of
    checkpoints. A part is what `gpt` or another tool wrote into a run, a checkpoint or a model: see `whole_of`.
    """
    place = Path(path)
    with translate_os_errors("read", place):
        mode = _mode(path)
        if place.suffix.lower() in YAML and "\0" not in str(path) and (mode is None or not stat.S_ISDIR(mode)):
            return "config"
        if mode is None:
            return None if split_name(place) is None else "checkpoint"
        if whole_of(place) is not None:
            return "part"
        if stat.S_ISDIR(mode):
            return _kind_of_folder(place)
        return "foreign model" if place.suffix.lower() == ".safetensors" or is_gguf(place) else "text"


def kind_of_names(names: Collection[str]) -> Whole | None:
    """The kind of a folder that has these names in it, as far as they tell."""
    if set(names) == {"lock"}:  # its training was stopped before anything else was written
        return "run"
    return next((kind for kind, those in _FOLDERS if those.issubset(names)), None)


def is_checkpoint(path: Path) -> bool:
    """True if the directory `path` is a checkpoint, intact or not."""
    return path.is_dir() and kind_of(path) == "checkpoint"


def whole_of(path: Path) -> Path | None:
    """The run, checkpoint or model that `path` is a part of; None if it is none."""
    is_weights = path.suffix == ".safetensors"
    wholes = ("run", "checkpoint", "foreign model") if is_weights else ("run", "checkpoint")
    return path.parent if (is_weights or path.name in _PARTS) and kind_of(path.parent) in wholes else None


def is_gguf(path: Path) -> bool:
    """True for a file for llama.cpp, by its name or by its first bytes."""
    if path.suffix.lower() == ".gguf":
        return True
    with translate_os_errors("read", path):
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"


def split_name(path: Path) -> tuple[Path, str] | None:
    """(RUN, WHICH) of RUN@STEP and RUN@best; None for another name, and where there is no such run."""
    name, _, which = path.name.rpartition("@")
    is_name = name.strip(".") != "" and names_checkpoint(which)
    run = path.with_name(name) if is_name else path
    return (run, which) if is_name and os.path.isdir(run) and _kind_of_folder(run) == "run" else None


def names_checkpoint(which: str) -> bool:
    """True for what may stand after the @ of RUN@STEP and RUN@best."""
    return which == BEST or re.fullmatch("[0-9]{1,18}", which) is not None


def refuse_unless(kinds: Collection[Kind | None], path: str | Path, wanted: str) -> None:
    """Raise RequestError if `path` is of none of these `kinds`, but of another than what is `wanted`, such as text."""
    kind, place = kind_of(path), Path(path)
    if kind == "part":
        whole = whole_of(place) or place.parent
        raise RequestError(f"{path} is a part of {whole}, not {wanted}", kind=_kind_of_folder(whole), path=whole)
    if kind not in kinds:
        name = "text" if kind == "text" else "nothing" if kind is None else f"a {kind}"
        raise RequestError(f"{path} is {name}, not {wanted}", kind=kind, path=path)


def _mode(path: str | Path) -> int | None:
    """The type and the rights of what is at `path`; None where nothing is, or can be. Raises OSError."""
    try:
        return os.stat(path).st_mode
    except ValueError:  # such as NUL in a name
        return None
    except OSError as error:
        if error.errno in _NOTHING:
            return None
        raise


def _kind_of_folder(folder: Path) -> Whole:
    with os.scandir(folder) as entries:
        names = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    if (kind := kind_of_names(names)) is not None:
        return kind
    if any((folder / _CHECKPOINTS).glob(f"step-*/{_STATE}")):
        return "damaged run"
    runs = {name for name, is_file in names.items() if not is_file and os.path.isfile(folder / name / RUN)}
    texts = {name.rpartition(".")[0] for name in names if name.lower().endswith(_TEXT_FILES)}
    return "runs folder" if runs and texts <= runs else "text"  # standard input is kept as RUN.txt
