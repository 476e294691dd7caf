"""Open a checkpoint, or explain why there is none."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpt_cli.config import Config
from gpt_cli.config.keys import get_key, replace_keys
from gpt_cli.config.load import uses_of_removed_keys
from gpt_cli.config.paths import TEXT_KEYS
from gpt_cli.errors import NonFiniteError, Notify, RequestError
from gpt_cli.files import is_locked
from gpt_cli.files.kinds import is_checkpoint
from gpt_cli.literals import Device
from gpt_cli.run.checkpoint import CONFIG, Checkpoint, load, load_newest
from gpt_cli.run.find_run import config_now
from gpt_cli.run.log import last_logged_step, read_events
from gpt_cli.terminal.words import plural

if TYPE_CHECKING:
    from gpt_cli.model.gpt import GPT

Task = Literal["language", "classes", "any"]
"""The `task.kind` of the checkpoint that is wanted."""


class TaskError(RequestError):
    """The checkpoint is of another task than the wanted one."""


def open_checkpoint(path: Path, note: Notify, task: Task = "language") -> Checkpoint:
    """The checkpoint that `path` is, or the newest intact one of a run. Reports each damaged one.

    The places of its texts are those of the run's config.yaml, which may have changed since it was saved; so is the
    section `sample`, unless `path` is a checkpoint.

    Raises RequestError when there is no checkpoint or it is not of this `task`, UserError when there is none that can
    be used. Both also for a config.yaml of the run that cannot be read.
    """
    checkpoint = load(path) if is_checkpoint(path) else load_newest(path, note)
    if checkpoint is None:
        raise no_checkpoint(path)
    refuse_other_task(path, checkpoint.config, task)
    config, now = checkpoint.config, config_now(path)
    if now is not None:
        config = config.model_copy(update={"sample": now.sample})
    else:
        now = config_now(path.parent.parent)  # the run of this checkpoint
    if now is not None:
        config = replace_keys(config, {key: get_key(now, key) for key in TEXT_KEYS})
    for use in uses_of_removed_keys(path / CONFIG) if (path / CONFIG).is_file() else ():
        if use.path and use.path[0] == "sample":
            note(f"{use.message}; the value of this run is ignored")
    return replace(checkpoint, config=config)


def build_torch_model(checkpoint: Checkpoint, device: Device) -> "GPT":
    """The model of `checkpoint` in torch, which is imported only now. Raises as `load_model.build_model` does."""
    from gpt_cli.run.load_model import build_model  # noqa: PLC0415
    from gpt_cli.runtime.device import choose_device  # noqa: PLC0415

    return build_model(checkpoint, choose_device(device)).model


def no_checkpoint(run: Path) -> RequestError:
    """The error for a `run` without a checkpoint: it is being trained, lost what it trained, or never began."""
    if is_locked(run):
        return RequestError(f"{run} has no checkpoint yet: it is being trained")
    steps = last_logged_step(run)
    none = f"no checkpoint: the training of {plural(steps, 'step')} is lost" if steps else "no checkpoint yet"
    ends = [event for event in read_events(run) if event["event"] in ("ended", "died", "killed")]
    if ends and str(ends[-1].get("error")).startswith(f"{NonFiniteError.__name__}:"):
        return RequestError(f"{run} has {none}, as its loss was not finite", kind="not finite", path=run)
    return RequestError(f"{run} has {none}", kind="no checkpoint", path=run)


def refuse_other_task(path: Path, config: Config, task: Task) -> None:
    """Raise TaskError if the run or checkpoint at `path`, with this config, is not of the `task`."""
    if task in ("any", config.task.kind):
        return
    if task == "language":
        raise TaskError(f"{path} classifies texts: it predicts no tokens", kind="classifier", path=path)
    raise TaskError(f"{path} predicts tokens: it was not trained with task.kind classes", kind="language model")
