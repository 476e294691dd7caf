"""Checkpoints: self-contained, verified directories from which training resumes and text is sampled.

    checkpoints/step-00001000/
        model.safetensors optimizer.safetensors state.json config.yaml tokenizer.json SHA256SUMS

`step` counts finished updates. There is no `latest` and no `best` pointer that could be wrong: the newest is
the highest step whose sums verify, the best the one whose state has the lowest `val_loss`. A damaged checkpoint
is reported and skipped; `save` and `prune` may remove it once intact ones make it useless.

Written by `save`, pruned by `prune`, verified by `load`, chosen by `load_newest` and `best_checkpoint`.
"""

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from gpt_cli.config import Config, dump_config, parse_config
from gpt_cli.config.paths import rooted
from gpt_cli.errors import Notify, UserError
from gpt_cli.files import (
    DamagedError,
    DiskError,
    VerifiedFiles,
    commit_files,
    list_directory,
    make_directory,
    read_directory,
    read_file,
    read_sums,
    remove_directory,
    remove_stale_temp_dirs,
    require_space,
    verify_directory,
)
from gpt_cli.files.kinds import RUN
from gpt_cli.run.arrays import Arrays, unpack_arrays
from gpt_cli.tokenizer import Tokenizer
from gpt_cli.tokenizer.loader import parse_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
CONFIG, TOKENIZER = "config.yaml", "tokenizer.json"
_NAME = re.compile(r"step-(\d{8,})")
_STATE_LIMIT = 1 << 20
_STATE_TYPES = {"format": int, "step": int, "tokenizer_digest": str}
_LARGEST_TABLES = 1 << 26  # bytes; large models may have more
_VERIFIED: VerifiedFiles = set()  # what this process has read: each save would read the checkpoints before it again


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. `state` is what training added to it; the tensors are on the CPU.

    Torch is imported where tensors are asked for: sampling needs the arrays alone.
    """

    path: Path
    step: int
    state: dict[str, Any]
    config: Config
    tokenizer: Tokenizer
    model_arrays: Arrays = field(repr=False)
    weights_sha256: str

    @cached_property
    def model_tensors(self) -> "dict[str, Tensor]":
        """The weights; they share their memory with `model_arrays`."""
        from gpt_cli.run.tensors import as_tensors  # noqa: PLC0415

        return as_tensors(self.model_arrays)

    @property
    def val_loss(self) -> float | None:
        """The validation loss that training measured; None if it measured none."""
        value = self.state.get("val_loss")
        return value if _is_number(value) else None

    def get_float(self, name: str, largest: float = sys.float_info.max) -> float:
        """Return the number `name` of the state. Raises DamagedError if it is no number, or beyond `largest`."""
        value = self.state.get(name)
        if not _is_number(value) or abs(value) > largest:
            raise DamagedError(f"{self.path} is damaged: {STATE} does not contain {name}")
        return float(value)

    def optimizer_tensors(self) -> "dict[str, Tensor]":
        """Read the optimizer's tensors, and verify them again: only training needs them."""
        from gpt_cli.run.tensors import unpack_tensors  # noqa: PLC0415

        return unpack_tensors(read_directory(self.path, {OPTIMIZER})[OPTIMIZER], str(self.path / OPTIMIZER))


# Written


def save(
    run_dir: Path,
    step: int,
    model_tensors: "Mapping[str, Tensor]",
    optimizer_tensors: "Mapping[str, Tensor]",
    state: Mapping[str, Any],
    config: Config,
    tokenizer: Tokenizer,
) -> Path:
    """Save the training after `step` updates and return the checkpoint's directory, which then survives a power cut.

    `state` is strict JSON; its `val_loss`, if there is one, decides which checkpoint is best. Needs the run's
    lock. Raises UserError when a tensor is not finite or the disk refuses; what was saved before is untouched.
    If the step is saved already, equal tensors are left as they are and different ones are an error.
    """
    from gpt_cli.run.tensors import pack_tensors, require_finite  # noqa: PLC0415

    require_finite(model_tensors, f"step {step}: weight")
    require_finite(optimizer_tensors, f"step {step}: optimizer state")
    metadata = {**state, "format": FORMAT, "step": step, "tokenizer_digest": tokenizer.digest}
    contents = {
        MODEL: pack_tensors(model_tensors),
        OPTIMIZER: pack_tensors(optimizer_tensors),
        STATE: json.dumps(metadata, indent=2, allow_nan=False).encode() + b"\n",
        CONFIG: dump_config(config).encode(),
        TOKENIZER: tokenizer.to_json().encode(),
    }
    parent, path = checkpoints_dir(run_dir), checkpoint_path(run_dir, step)
    if parent.is_symlink():
        raise DiskError(f"cannot write {parent}: it is a symbolic link, which is never followed")
    if path.exists() and _is_intact(path):
        sums = read_sums(path)  # of tensors alone: the state may hold times, which do not repeat
        if any(sums[name] != hashlib.sha256(contents[name]).hexdigest() for name in (MODEL, OPTIMIZER)):
            raise UserError(f"{path} holds step {step} of another course of training", kind="another run")
        return path
    make_directory(parent)
    remove_stale_temp_dirs(parent)
    require_space(parent, sum(map(len, contents.values())))
    commit_files(path, contents, replace=True)  # what it may replace did not verify
    return path


def prune(run_dir: Path, keep: int) -> list[Path]:
    """Remove all checkpoints but the newest `keep` and the best one, and return what was removed.

    Only intact ones count, and what stays is verified before anything is removed; a damaged one that is newer
    than the oldest kept stays too. Needs the run's lock.
    """
    paths = list_checkpoints(run_dir)
    if len(paths) <= keep:
        return []
    is_intact = cache(_is_intact)
    intact = list(islice(filter(is_intact, paths), keep))
    if not intact:
        return []
    spared = {*paths[: paths.index(intact[-1]) + 1], best_checkpoint(run_dir, is_intact)}
    removed = [path for path in paths if path not in spared]
    for path in removed:
        remove_directory(path)
    return removed


# Verified and read


def load(path: Path) -> Checkpoint:
    """Load the checkpoint in the directory `path`, wherever that was copied to.

    Raises DamagedError unless every file verifies, UserError if it was written by a newer `gpt`.
    """
    contents = read_directory(path, {MODEL, CONFIG, TOKENIZER, STATE})
    state = _check_state(path, contents[STATE])
    try:
        tokenizer = parse_tokenizer(contents[TOKENIZER].decode())
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {TOKENIZER} is not a tokenizer ({error})") from error
    if tokenizer.digest != state["tokenizer_digest"]:
        raise DamagedError(f"{path} is damaged: {TOKENIZER} is not the one it was trained with")
    config = parse_config(contents[CONFIG].decode(errors="replace"), str(path / CONFIG), of_run=True)
    if path.parent.name == "checkpoints" and (path.parent.parent / RUN).is_file():
        config = rooted(config, path.parent.parent)
    _refuse_giant(config, len(contents[MODEL]))
    return Checkpoint(
        path=path,
        step=state["step"],
        state=state,
        config=config,
        tokenizer=tokenizer,
        model_arrays=unpack_arrays(contents[MODEL], str(path / MODEL)),
        weights_sha256=read_sums(path)[MODEL],
    )


def load_newest(run_dir: Path, note: Notify) -> Checkpoint | None:
    """Load the newest checkpoint of the run that verifies; None if the run has none at all.

    A trainer may commit and remove some meanwhile. Each damaged one that is newer is reported through `note`. Raises
    UserError if there are only damaged ones: whether to start again from nothing is the user's decision.
    """
    tried: set[Path] = set()
    while untried := [path for path in list_checkpoints(run_dir) if path not in tried]:
        for path in untried:
            try:
                return load(path)
            except UserError as error:
                if not path.is_dir():  # a trainer removed it meanwhile, having committed a newer one
                    continue
                if not isinstance(error, DamagedError):
                    raise
                note(f"{error.message}; it is skipped")
        tried.update(untried)
    if any(path.is_dir() for path in tried):
        raise UserError(f"no checkpoint in {checkpoints_dir(run_dir)} is intact", kind="damaged run", path=run_dir)
    return None


def verified_copy(run_dir: Path, name: str) -> Path | None:
    """Find the file `name` in the newest checkpoint in which it verifies: what decides numbers is read from there."""
    for path in list_checkpoints(run_dir):
        try:
            if hashlib.sha256(read_file(path / name)).hexdigest() == read_sums(path).get(name):
                return path / name
        except UserError:  # damaged, or removed by a trainer meanwhile
            continue
    return None


def saved_state(run_dir: Path, step: int | None) -> dict[str, Any]:
    """Return the training state saved with the checkpoint of `step`; {} for None."""
    return {} if step is None else _read_state(checkpoint_path(run_dir, step))


def _is_intact(path: Path) -> bool:
    """True if the checkpoint verifies; its files are read once, and again when they have changed."""
    try:
        verify_directory(path, _VERIFIED)
        _check_state(path, read_file(path / STATE, _STATE_LIMIT))
    except DamagedError:
        return False
    return True


def _check_state(path: Path, data: bytes) -> dict[str, Any]:
    """Parse state.json. Raises DamagedError if a file is missing, or the step differs from the directory's name."""
    if absent := sorted({MODEL, OPTIMIZER, CONFIG, TOKENIZER} - read_sums(path).keys()):
        raise DamagedError(f"{path} is damaged: {absent[0]} is missing")
    state = _parse_state(data, path)
    if (name := _NAME.fullmatch(path.name)) and int(name[1]) != state["step"]:
        raise DamagedError(f"{path} is damaged: it holds step {state['step']}")
    return state


def _read_state(path: Path) -> dict[str, Any]:
    """Parse state.json of the checkpoint `path`, whose sums are not compared."""
    return _parse_state(read_file(path / STATE, _STATE_LIMIT), path)


def _parse_state(data: bytes, path: Path) -> dict[str, Any]:
    try:
        state = json.loads(data, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {STATE} is not JSON ({error})") from error
    if not isinstance(state, dict) or any(type(state.get(key)) is not kind for key, kind in _STATE_TYPES.items()):
        raise DamagedError(f"{path} is damaged: {STATE} does not contain {', '.join(_STATE_TYPES)}")
    if state["format"] > FORMAT:
        raise UserError(f"{path} was written by a newer gpt (format {state['format']})")
    return state


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _refuse_giant(config: Config, size: int) -> None:
    """Raise UserError if positions alone would take far more memory than the weights, which are of that `size`.

    The tables of sines and cosines are not in the checkpoint, so their length is in the config alone.
    """
    width = {"rope": config.model.head_dim, "sinusoidal": config.model.n_embd}.get(config.model.position, 0)
    if (tables := 4 * config.model.context_length * width) > max(_LARGEST_TABLES, 4 * size):
        raise UserError(
            f"a context of {config.model.context_length:,} tokens takes {tables:,} bytes for positions alone"
        )


def _is_number(value: Any) -> TypeGuard[float]:
    """True if it is a finite number, and not an integer beyond all floats."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max and math.isfinite(value)


# Listed and chosen


def checkpoints_dir(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Return the directory of the checkpoint of `step`, whether it exists or not."""
    return checkpoints_dir(run_dir) / f"step-{step:08d}"


def checkpoint_step(path: Path) -> int:
    """Return the step of a checkpoint directory of a run, by its name."""
    return int(path.name.removeprefix("step-"))


def list_checkpoints(run_dir: Path) -> list[Path]:
    """List the committed checkpoints of the run, newest first; they are not verified."""
    parent = checkpoints_dir(run_dir)
    paths = [parent / name for name in list_directory(parent) if _NAME.fullmatch(name)]
    paths = [path for path in paths if path.is_dir() and not path.is_symlink()]
    return sorted(paths, key=checkpoint_step, reverse=True)


def best_checkpoint(run_dir: Path, is_intact: Callable[[Path], bool] = _is_intact) -> Path | None:
    """Find the intact checkpoint with the lowest `val_loss` that is finite, the newest of equals."""
    return next((path for _, path in rank_checkpoints(run_dir) if is_intact(path)), None)


def rank_checkpoints(run_dir: Path) -> list[tuple[float, Path]]:
    """List (`val_loss`, checkpoint), the lowest first, of those that have a finite one; they are not verified."""
    scored = []
    for path in list_checkpoints(run_dir):
        try:
            val_loss = _read_state(path).get("val_loss")
        except UserError:  # damaged or unreadable: it cannot be the best
            continue
        if _is_number(val_loss):
            scored.append((val_loss, path))
    return sorted(scored, key=itemgetter(0))  # of equals the newest stays first
