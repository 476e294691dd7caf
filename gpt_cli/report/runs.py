"""List the runs of a folder: progress, best loss, and the config keys in which each differs from the others."""

import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpt_cli.config import Config, load_config, to_yaml_scalar
from gpt_cli.config.keys import fields, get_key
from gpt_cli.errors import Notify, UserError, first_line
from gpt_cli.files import DamagedError, is_locked, list_directory
from gpt_cli.run.arrays import read_header
from gpt_cli.run.checkpoint import CONFIG, MODEL, checkpoint_step, list_checkpoints
from gpt_cli.run.find_run import refuse_without_record
from gpt_cli.run.lifecycle import why_over
from gpt_cli.run.log import last_logged_step, read_events, read_metrics
from gpt_cli.run.resume import may_change
from gpt_cli.run.run_files import RUN, is_imported
from gpt_cli.terminal.escape import escape_control_chars
from gpt_cli.terminal.table import render_table
from gpt_cli.terminal.words import short_number

_MAX_HEADER = 1 << 24  # bytes at the start of a model file that are read for its header
IMPORTED = "imported"  # the state of a run that was not trained here
_OF_IMPORTED = ("model.", "tokenizer.", "task.")  # sections that tell something of one
_MAX_DIFFERENCES = 4  # shown for a run; `gpt diff` has all


@dataclass(frozen=True)
class RunLine:
    """One run in a list; None where a value is unknown."""

    path: str
    state: str
    """complete, ended (by a rule, before its last step), stopped, training, new, imported, or why it cannot be read."""
    steps: int | None = None
    """Step of the newest checkpoint."""
    of_steps: int | None = None
    val_loss: float | None = None
    """The lowest validation loss, in nats per token."""
    bpb: float | None = None
    """Bits per byte of that evaluation."""
    parameters: int | None = None
    saved: str | None = None
    """Local time at which the newest checkpoint was written."""
    differences: dict[str, Any] | None = None
    """The config keys whose value is not the most common one, with their values."""
    closed: bool = False
    """True if permission to read it was denied; an unreadable folder need not be a run."""


def list_runs(folder: Path, note: Notify = lambda _: None) -> list[RunLine]:
    """A line for each run in `folder`, the most recently saved first; then those that lack run.json, or are closed.

    Damaged lines of their logs are skipped with a `note`.
    """
    paths = [folder / name for name in list_directory(folder)]
    named = [path for path in paths if os.path.isdir(path) and not path.name.startswith(".")]
    closed = [path for path in named if not os.access(path, os.R_OK | os.X_OK)]
    runs = [path for path in paths if path not in closed and os.path.isfile(path / RUN)]
    closed = [path for path in closed if _may_be_a_run(path)]
    runs = sorted(runs, key=_saved, reverse=True)
    configs: dict[Path, Config] = {}
    broken: dict[Path, RunLine] = {}
    for run in runs:
        try:
            configs[run] = load_config(run / CONFIG)
        except UserError as error:
            broken[run] = _failed(run, first_line(error), error.__cause__)
    broken |= _without_record(path for path in named if path not in closed and path not in runs)
    common = _common_values(list(configs.values()))
    listed = [_describe(run, configs[run], common, note) if run in configs else broken.pop(run) for run in runs]
    listed += broken.values()
    return listed + [RunLine(str(path), "cannot be read: permission denied", closed=True) for path in closed]


def render_runs(lines: list[RunLine]) -> str:
    """The lines as a table, the differences of each run below its row."""
    columns: dict[str, list[str | None]] = {
        "run": [Path(line.path).name for line in lines],
        "bpb": [None if line.bpb is None else f"{line.bpb:.3f}" for line in lines],
        "val loss": [None if line.val_loss is None else f"{line.val_loss:.4f}" for line in lines],
        "size": [None if line.parameters is None else short_number(line.parameters) for line in lines],
        "steps": [_steps(line) for line in lines],
        "saved": [line.saved for line in lines],
        "state": [_state_word(line) for line in lines],
    }
    table = render_table(list(zip(*columns.values(), strict=True)), header=list(columns), right=range(1, 5))
    heading, *rows = table.split("\n")
    text = [heading]
    for line, row in zip(lines, rows, strict=True):
        below = line.state if line.differences is None else " ".join(_differences(line.differences))
        text += [row, f"  {escape_control_chars(below)}"] if below else [row]
    return "\n".join(text)


def _state_word(line: RunLine) -> str:
    if line.closed:
        return "closed"
    return line.state if line.differences is not None else "damaged"


def _steps(line: RunLine) -> str:
    if line.steps is None or line.of_steps is None or line.state == IMPORTED:
        return ""
    is_complete = line.steps >= line.of_steps  # more, where train.steps was lowered since
    return f"{line.steps:,}" if is_complete else f"{line.steps:,}/{line.of_steps:,}"


def _differences(differences: dict[str, Any]) -> list[str]:
    changes = [f"{key}={to_yaml_scalar(value)}" for key, value in differences.items()]
    more = len(changes) - _MAX_DIFFERENCES
    return [*changes[:_MAX_DIFFERENCES], *([f"+{more}"] if more > 0 else [])]


def _saved(run: Path) -> float:
    try:
        newest = list_checkpoints(run)
        return (newest[0] if newest else run / RUN).stat().st_mtime
    except (UserError, OSError):  # permission denied
        return 0.0


def _describe(run: Path, config: Config, common: dict[str, Any], note: Notify) -> RunLine:
    try:
        checkpoints = list_checkpoints(run)
        evaluations = [line for line in read_metrics(run, note) if "val_loss" in line]
        parameters = _parameters(checkpoints[0]) if checkpoints else None
        steps = checkpoint_step(checkpoints[0]) if checkpoints else None
        imported = is_imported(run)
        state = IMPORTED if imported else _state(run, steps, config.train.steps)
    except UserError as error:
        return _failed(run, error.message, error.__cause__)
    except OSError as error:
        return _failed(run, f"cannot read {error.filename}: {(error.strerror or str(error)).lower()}", error)
    best: dict[str, Any] = min(evaluations, key=lambda line: float(line["val_loss"]), default={})
    return RunLine(
        path=str(run),
        state=state,
        steps=steps,
        of_steps=config.train.steps,
        val_loss=best.get("val_loss"),
        bpb=best.get("bpb"),
        parameters=parameters,
        saved=f"{datetime.fromtimestamp(_saved(run)):%Y-%m-%d %H:%M}" if checkpoints else None,
        differences={
            key: get_key(config, key)
            for key, value in common.items()
            if get_key(config, key) != value and (not imported or key.startswith(_OF_IMPORTED))
        },
    )


def _without_record(folders: Iterable[Path]) -> dict[Path, RunLine]:
    """The lines of those that were runs, and have lost run.json; one that begins just now has not lost it."""
    lines: dict[Path, RunLine] = {}
    for folder in folders:
        try:
            if not is_locked(folder):
                refuse_without_record(folder)
        except UserError as error:
            lines[folder] = _failed(folder, error.message, error.__cause__)
        except OSError:  # closed, and known to be no run
            continue
    return lines


def _failed(run: Path, state: str, cause: BaseException | None) -> RunLine:
    """The line of a run that could not be read."""
    return RunLine(str(run), state, closed=isinstance(cause, PermissionError))


def _may_be_a_run(folder: Path) -> bool:
    """False if the unreadable `folder` is known not to be a run."""
    if os.access(folder, os.X_OK):
        return os.path.isfile(folder / RUN)
    return not os.access(folder, os.R_OK) or RUN in os.listdir(folder)


def _state(run: Path, steps: int | None, of_steps: int) -> str:
    if is_locked(run):
        return "training"
    if steps is None:
        return "lost" if last_logged_step(run) else "new"
    if steps >= of_steps:
        return "complete"
    return "stopped" if why_over(read_events(run), steps) is None else "ended"


def _parameters(checkpoint: Path) -> int:
    path = checkpoint / MODEL
    with path.open("rb") as file:
        header = read_header(file.read(_MAX_HEADER), str(path))
    try:
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (KeyError, TypeError) as error:
        raise DamagedError(f"{path.parent} is damaged: {MODEL} is not a safetensors file of tensors") from error


def _common_values(configs: list[Config]) -> dict[str, Any]:
    """The most common value of each key in which the configs differ, except keys that a resumed run may change."""
    common = {}
    for key in fields():
        if key != "train.steps" and may_change(key):
            continue
        values = [get_key(config, key) for config in configs]
        counts = Counter(map(to_yaml_scalar, values))
        if len(counts) > 1:
            most_common = counts.most_common(1)[0][0]
            common[key] = next(value for value in values if to_yaml_scalar(value) == most_common)
    return common
