"""Find a run or checkpoint by name, and recognise what else a path is."""

import math
import os
import re
from pathlib import Path

from gpt_cli.config import Config, load_config
from gpt_cli.config.synonyms import suggest
from gpt_cli.errors import RequestError
from gpt_cli.files import DamagedError, free_name, list_directory
from gpt_cli.files.os_errors import translate_os_errors
from gpt_cli.run.checkpoint import (
    CONFIG,
    best_checkpoint,
    checkpoint_step,
    is_checkpoint,
    list_checkpoints,
)
from gpt_cli.run.run_files import DATA, RUN

BEST = "best"
_RECORD = (RUN, DATA, CONFIG)  # by which a directory is one of our runs


def find_run(path: str | Path | None, *, check: bool = True) -> Path:
    """The run or checkpoint directory at `path`; for None, the run under `runs/` with the newest checkpoint.

    RUN@STEP and RUN@best name checkpoints, too: that of a step, and that of the lowest validation loss.

    Raises RequestError when there is none, DamagedError for a run without its run.json, and, unless `check` is False,
    where a file of a run that is written once is not what it was. (A checkpoint is verified when it is loaded.)
    """
    if path == "":
        raise RequestError("the name of a run is empty, which names nothing")
    return _newest_run(Path("runs")) if path is None else _find_named(Path(path))


def is_run(name: str) -> bool:
    """True if a run or a checkpoint has this name."""
    try:
        path = Path(name)
        return is_checkpoint(path) or (path / RUN).is_file() or split_name(path) is not None
    except (OSError, ValueError):  # a text rather than a name
        return False


def is_gguf(path: Path) -> bool:
    """True for a file that is one for llama.cpp by its name or by its first bytes."""
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
    if not name.strip(".") or not names_checkpoint(which) or not os.path.isfile(path.with_name(name) / RUN):
        return None
    return path.with_name(name), which


def names_checkpoint(which: str) -> bool:
    """True for what may stand after the @ of RUN@STEP and RUN@best."""
    return which == BEST or re.fullmatch("[0-9]{1,18}", which) is not None


def named_checkpoint(run: Path, which: str) -> Path | None:
    """The checkpoint of the step `which`, or for `best` the intact one of the lowest validation loss, if there is."""
    if which == BEST:
        return best_checkpoint(run)
    return next((path for path in list_checkpoints(run) if checkpoint_step(path) == int(which)), None)


def no_such_checkpoint(run: str | Path, which: str) -> str:
    """The error where there is no `named_checkpoint`."""
    return f"{run} has no checkpoint {'with a validation loss' if which == BEST else f'of step {int(which)}'}"


def _nearest_checkpoints(name: str, kept: list[Path]) -> list[str]:
    """The checkpoints of `kept` that `name` may mean: that of the step it ends with, else the three nearest."""
    digits = re.search(r"[0-9]{1,18}$", name)
    if digits is None:
        return [str(path) for path in kept[:1]]
    distances = {str(path): abs(checkpoint_step(path) - int(digits[0])) for path in kept}
    nearest = sorted(distances, key=distances.__getitem__)
    return nearest[: 1 if 0 in distances.values() else 3]


def _find_named(path: Path) -> Path:
    if is_checkpoint(path) or (path / RUN).is_file():
        return path
    if not path.exists():
        if path.parent.name == "checkpoints" and (kept := list_checkpoints(path.parent.parent)):
            raise RequestError(f"there is no checkpoint at {path}", choices=_nearest_checkpoints(path.name, kept))
        if (named := split_name(path)) is not None:
            return _find_checkpoint(*named)
        near = [Path("runs") / path]
        if not _is_there(near[0]):
            runs = {run.parent.name: run.parent for folder in (*near, path) for run in folder.parent.glob(f"*/{RUN}")}
            near = [runs[name] for name in suggest(path.name, runs)]
        raise RequestError(
            f"there is no run at {path}", choices=[str(run) for run in near], kind=None if near else "no run"
        )
    if is_gguf(path) or (path / "config.json").is_file():
        raise RequestError(f"{path} is a model of other tools", kind="foreign model", path=path)
    inside = next((place for place in path.parents if is_checkpoint(place) or (place / RUN).is_file()), None)
    if inside is not None:
        raise RequestError(f"{path} is neither a run nor a checkpoint", choices=[str(inside)])
    if path.is_dir():
        refuse_without_record(path)
    if any(path.glob(f"*/{RUN}")):
        message = f"{path} is neither a run nor a checkpoint, but a folder of runs"
        raise RequestError(message, kind="runs folder", path=path)
    name = "the current folder" if path == Path() else path
    raise RequestError(f"{name} is neither a run nor a checkpoint", kind="no run")


def _is_there(path: Path) -> bool:
    """True if `find_run` finds the run or the checkpoint of this name."""
    named = split_name(path)
    return is_run(str(path)) if named is None else named_checkpoint(*named) is not None


def _find_checkpoint(run: Path, which: str) -> Path:
    if (checkpoint := named_checkpoint(run, which)) is not None:
        return checkpoint
    kept = list_checkpoints(run)
    newest = [str(run)] if kept else []
    choices = newest if which == BEST else _nearest_checkpoints(which, kept)
    raise RequestError(no_such_checkpoint(run, which), choices=choices)


def refuse_without_record(path: Path) -> None:
    """Raise DamagedError if the directory `path` was a run, and run.json is missing."""
    newest = next(iter(list_checkpoints(path)), None) if (path / "checkpoints").is_dir() else None
    was_run = newest is not None or all((path / name).is_file() for name in (CONFIG, DATA, "SHA256SUMS"))
    if was_run and not (path / RUN).exists():
        choices = [] if newest is None else [str(newest)]
        if not (path / CONFIG).exists():  # as where a run was removed while it was trained
            raise DamagedError(f"{path} has checkpoints, and nothing else of a run", choices=choices)
        raise DamagedError(f"{path} is damaged: {RUN} is missing", choices=choices)


def refuse_nested(path: Path) -> None:
    """Raise RequestError for a directory inside of a run, with which it would be removed."""
    whole = Path(os.path.realpath(path))
    parents = (parent for parent in whole.parents if all(os.path.isfile(parent / name) for name in _RECORD))
    around = next(parents, None)
    if around is not None:
        beside = free_name(around.with_name(whole.name))
        shown = (around, beside) if path.is_absolute() else map(os.path.relpath, (around, beside))
        run, other = map(str, shown)
        raise RequestError(f"{path} lies inside of a run, {run}", choices=[other])


def run_around(checkpoint: Path) -> list[str]:
    """The run that `checkpoint` is of, as the `choices` of an error; none for a copy elsewhere."""
    run = checkpoint.parent.parent
    return [str(run)] if (run / RUN).is_file() else []


def config_now(path: Path) -> Config | None:
    """The config.yaml of the run at `path`, which may differ from that of its checkpoints; None for a checkpoint.

    Raises RequestError, with its place, for what is wrong there.
    """
    return load_config(path / CONFIG) if (path / RUN).is_file() and (path / CONFIG).is_file() else None


def _newest_run(runs: Path) -> Path:
    candidates = [runs / name for name in list_directory(runs) if (runs / name).is_dir()]
    newest = {run: checkpoints[0] for run in candidates if (checkpoints := list_checkpoints(run))}
    if not newest:
        raise RequestError(f"no run found under {runs.absolute()}", kind="no runs")
    return max(newest, key=lambda run: _saved_at(newest[run]))


def _saved_at(checkpoint: Path) -> float:
    """The time at which it was saved; later than any if a trainer removed it just now, having saved a newer one."""
    try:
        return checkpoint.stat().st_mtime_ns
    except FileNotFoundError:
        return math.inf
