"""Find a run or a checkpoint by its name."""

import math
import os
import re
from pathlib import Path

from gpt_cli.config import Config, load_config
from gpt_cli.config.synonyms import suggest
from gpt_cli.errors import RequestError
from gpt_cli.files import DamagedError, DiskError, free_name, list_directory
from gpt_cli.files.kinds import BEST, CONFIG, DATA, RUN, kind_of, split_name, whole_of
from gpt_cli.run.checkpoint import best_checkpoint, checkpoint_step, list_checkpoints

_RECORD = (RUN, DATA, CONFIG)  # by which a directory is one of our runs


def find_run(path: str | Path | None) -> Path:
    """The run or checkpoint directory at `path`; for None, the run under `runs/` with the newest checkpoint.

    RUN@STEP and RUN@best name checkpoints, too: that of a step, and that of the lowest validation loss.

    Raises RequestError when there is none, and DamagedError for a run without its run.json. (A checkpoint is verified
    when it is loaded.)
    """
    if path is None:
        return _newest_run(Path("runs"))
    if path == "":
        raise RequestError("the name of a run is empty, which names nothing")
    kind, path = kind_of(path), Path(path)
    if kind in ("run", "checkpoint"):
        named = None if path.exists() else split_name(path)
        return path if named is None else _find_checkpoint(*named)
    if kind is None:
        raise _no_run(path)
    refuse_without_record(path)
    message, whole = f"{path} is neither a run nor a checkpoint", whole_of(path)
    if kind == "part" or whole is not None:
        raise RequestError(message, choices=[str(whole)])
    raise RequestError(message, kind=kind, path=path)


def is_run(name: str | Path) -> bool:
    """True if a run or a checkpoint has this name."""
    try:
        return kind_of(name) in ("run", "checkpoint")
    except DiskError:
        return False


def named_checkpoint(run: Path, which: str) -> Path | None:
    """The checkpoint of the step `which`, or for `best` the intact one of the lowest validation loss, if there is."""
    if which == BEST:
        return best_checkpoint(run)
    return next((path for path in list_checkpoints(run) if checkpoint_step(path) == int(which)), None)


def no_such_checkpoint(run: str | Path, which: str) -> str:
    """The error where there is no `named_checkpoint`."""
    return f"{run} has no checkpoint {'with a validation loss' if which == BEST else f'of step {int(which)}'}"


def _find_checkpoint(run: Path, which: str) -> Path:
    if (checkpoint := named_checkpoint(run, which)) is not None:
        return checkpoint
    kept = list_checkpoints(run)
    choices = [str(run)][: len(kept)] if which == BEST else _nearest_checkpoints(which, kept)
    raise RequestError(no_such_checkpoint(run, which), choices=choices)


def _nearest_checkpoints(name: str, kept: list[Path]) -> list[str]:
    """The checkpoints of `kept` that `name` may mean: that of the step it ends with, else the three nearest."""
    steps = {checkpoint_step(path): str(path) for path in kept}  # the newest comes first, and is meant without a step
    digits = re.search(r"[0-9]{1,18}$", name)
    step = int(digits[0]) if digits is not None else max(steps, default=0)
    nearest = sorted(steps, key=lambda kept_step: abs(kept_step - step))
    return [steps[one] for one in nearest[: 1 if step in steps else 3]]


def _no_run(path: Path) -> RequestError:
    """The error where there is nothing at `path`, with the names beside it and in `runs/` that may be meant."""
    if path.parent.name == "checkpoints" and (kept := list_checkpoints(path.parent.parent)):
        return RequestError(f"there is no checkpoint at {path}", choices=_nearest_checkpoints(path.name, kept))
    inside = Path("runs") / path
    near = {run.parent.name: run.parent for place in (inside, path) for run in place.parent.glob(f"*/{RUN}")}
    choices = [str(inside)] if _is_there(inside) else [str(near[name]) for name in suggest(path.name, near)]
    return RequestError(f"there is no run at {path}", choices=choices, kind=None if choices else "no run")


def _is_there(path: Path) -> bool:
    """True if `find_run` finds the run or the checkpoint of this name."""
    named = None if path.exists() else split_name(path)
    return is_run(path) if named is None else named_checkpoint(*named) is not None


def refuse_without_record(path: Path) -> None:
    """Raise DamagedError if the directory `path` was a run, and run.json is missing; nothing of a closed one."""
    try:
        if kind_of(path) != "damaged run":
            return
    except DiskError:
        return
    kept = [str(checkpoint) for checkpoint in list_checkpoints(path)[:1]]
    if not (path / CONFIG).exists():  # as where a run was removed while it was trained
        raise DamagedError(f"{path} has checkpoints, and nothing else of a run", choices=kept)
    raise DamagedError(f"{path} is damaged: {RUN} is missing", choices=kept)


def refuse_nested(path: Path) -> None:
    """Raise RequestError for a directory inside of a run, with which it would be removed."""
    whole = Path(os.path.realpath(path))
    around = next((place for place in whole.parents if all(os.path.isfile(place / name) for name in _RECORD)), None)
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
