"""Find a run or a checkpoint by its name, and say what else it is that has this name."""

import math
import os
import re
from difflib import get_close_matches
from pathlib import Path
from shlex import quote

from gpt_cli.config import Config, load_config
from gpt_cli.errors import RequestError
from gpt_cli.files import DamagedError, check_listed, list_directory
from gpt_cli.files.put_back import how_to_put_back
from gpt_cli.files.safe_io import translate_os_errors
from gpt_cli.run.checkpoint import (
    CONFIG,
    TOKENIZER,
    best_checkpoint,
    checkpoint_step,
    is_checkpoint,
    list_checkpoints,
)
from gpt_cli.run.run_files import DATA, RUN, free_name

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
    path = _newest_run(Path("runs")) if path is None else _find_named(Path(path))
    if check and (path / RUN).is_file():
        check_run_files(path)
    return path


def check_run_files(path: Path) -> None:
    """Raise DamagedError if a file of a run that is written once is not what it was, or is missing."""
    try:
        check_listed(path)
    except DamagedError as error:
        absent = next((name for name in (CONFIG, TOKENIZER) if not (path / name).exists()), None)
        newest = next(iter(list_checkpoints(path)), None)
        if absent is not None and (command := how_to_put_back(path, absent)) is not None:
            error.hint = f"put back the copy of a checkpoint: {command}"
        elif error.member is not None and (command := how_to_put_back(path, error.member)) is not None:
            error.hint = f"{error.hint}: {command}"
        elif error.hint is None and newest is not None:
            error.hint = _use_alone(newest)
        raise


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


def _hint_at_checkpoint(name: str, kept: list[Path]) -> str:
    """A suggestion of the checkpoint among `kept` whose step `name` ends with, else of the newest."""
    digits = re.search(r"[0-9]{1,18}$", name)
    same = [path for path in kept if digits is not None and checkpoint_step(path) == int(digits[0])]
    if same or digits is None:
        return f"did you mean {(same or kept)[0]}?"
    steps = ", ".join(f"{checkpoint_step(path)}" for path in reversed(kept[:8]))
    return f"did you mean {kept[0]}? (there are steps {steps})"


def _find_named(path: Path) -> Path:
    if is_checkpoint(path) or (path / RUN).is_file():
        return path
    if not path.exists():
        if path.parent.name == "checkpoints" and (kept := list_checkpoints(path.parent.parent)):
            raise RequestError(f"there is no checkpoint at {path}", hint=_hint_at_checkpoint(path.name, kept))
        if (named := split_name(path)) is not None:
            return _find_checkpoint(*named)
        near = Path("runs") / path
        if not _is_there(near):
            runs = {run.parent.name: run.parent for folder in (near, path) for run in folder.parent.glob(f"*/{RUN}")}
            near = next((runs[name] for name in get_close_matches(path.name, runs, 1)), near)
        hint = f"did you mean {near}?" if _is_there(near) else "gpt runs lists the runs there are"
        raise RequestError(f"there is no run at {path}", hint=hint)
    if is_gguf(path) or (path / "config.json").is_file():
        kind = "hf " if path.is_dir() else ""
        run_dir = free_name(Path("runs") / Path(os.path.abspath(path)).stem)
        command = f"gpt import {kind}{quote(str(path))} {quote(str(run_dir))}"
        if path.is_file():
            command += " (from f32, f16 or bf16; weights of fewer bits cannot be restored)"
        raise RequestError(f"{path} is a model of other tools", hint=f"make it a run: {command}")
    inside = next((place for place in path.parents if is_checkpoint(place) or (place / RUN).is_file()), None)
    if inside is not None:
        raise RequestError(f"{path} is neither a run nor a checkpoint", hint=f"did you mean {inside}?")
    if path.is_dir():
        refuse_without_record(path)
    if records := sorted(path.glob(f"*/{RUN}"), key=os.path.getmtime):
        hint = f"gpt runs --dir {quote(str(path))} lists them"
        of_all = path / "report.html"
        hint += f"; the report on all is {of_all}" if of_all.exists() else f"; did you mean {records[-1].parent}?"
        raise RequestError(f"{path} is neither a run nor a checkpoint, but a folder of runs", hint=hint)
    name = "the current folder" if path == Path() else path
    raise RequestError(
        f"{name} is neither a run nor a checkpoint", hint="name a run, such as those that `gpt runs` lists"
    )


def _is_there(path: Path) -> bool:
    """True if `find_run` finds the run or the checkpoint of this name."""
    named = split_name(path)
    return is_run(str(path)) if named is None else named_checkpoint(*named) is not None


def _find_checkpoint(run: Path, which: str) -> Path:
    if (checkpoint := named_checkpoint(run, which)) is not None:
        return checkpoint
    kept = list_checkpoints(run)
    hint = f"its newest checkpoint is that of {run}" if which == BEST else _hint_at_checkpoint(which, kept)
    raise RequestError(no_such_checkpoint(run, which), hint=hint if kept else None)


def refuse_without_record(path: Path) -> None:
    """Raise DamagedError if the directory `path` was a run, and run.json is missing."""
    newest = next(iter(list_checkpoints(path)), None) if (path / "checkpoints").is_dir() else None
    was_run = newest is not None or all((path / name).is_file() for name in (CONFIG, DATA, "SHA256SUMS"))
    if was_run and not (path / RUN).exists():
        hint = "it has no checkpoint: train it anew" if newest is None else _use_alone(newest)
        if not (path / CONFIG).exists():  # as where a run was removed while it was trained
            raise DamagedError(f"{path} has checkpoints, and nothing else of a run", hint=hint)
        raise DamagedError(f"{path} is damaged: {RUN} is missing", hint=hint)


def _use_alone(checkpoint: Path) -> str:
    path = quote(str(checkpoint))
    return (
        f"its newest checkpoint can be used by itself: gpt sample {path}; a new run begins with its weights:"
        f" gpt train TEXT train.init_from={path}"
    )


def refuse_nested(path: Path) -> None:
    """Raise RequestError for a directory inside of a run, with which it would be removed."""
    whole = Path(os.path.realpath(path))
    parents = (parent for parent in whole.parents if all(os.path.isfile(parent / name) for name in _RECORD))
    around = next(parents, None)
    if around is not None:
        beside = free_name(around.with_name(whole.name))
        shown = (around, beside) if path.is_absolute() else map(os.path.relpath, (around, beside))
        run, other = map(str, shown)
        raise RequestError(f"{path} lies inside of a run, {run}", hint=f"name one beside it: {other}")


def hint_at_run(checkpoint: Path) -> str:
    """The way out where a run is wanted, and one of its checkpoints was given."""
    run = checkpoint.parent.parent
    return f"give its run: {run}" if (run / RUN).is_file() else "give its run"


def config_now(path: Path) -> Config | None:
    """The config.yaml of the run at `path`, which may differ from that of its checkpoints; None for a checkpoint.

    Raises RequestError, with its place, for what is wrong there.
    """
    return load_config(path / CONFIG) if (path / RUN).is_file() and (path / CONFIG).is_file() else None


def _newest_run(runs: Path) -> Path:
    candidates = [runs / name for name in list_directory(runs) if (runs / name).is_dir()]
    newest = {run: checkpoints[0] for run in candidates if (checkpoints := list_checkpoints(run))}
    if not newest:
        raise RequestError(
            f"no run found under {runs.absolute()}",
            hint="train one: gpt train TEXT; or name one that lies elsewhere: --run RUN",
        )
    return max(newest, key=lambda run: _saved_at(newest[run]))


def _saved_at(checkpoint: Path) -> float:
    """The time at which it was saved; later than any if a trainer removed it just now, having saved a newer one."""
    try:
        return checkpoint.stat().st_mtime_ns
    except FileNotFoundError:
        return math.inf
