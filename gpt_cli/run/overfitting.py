"""Overfitting: a validation loss that rose again, and the better checkpoint that is kept."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from gpt_cli.errors import Notify, UserError
from gpt_cli.files.kinds import BEST
from gpt_cli.run.checkpoint import checkpoint_step, rank_checkpoints, saved_state
from gpt_cli.run.run_files import RUN

_RISE = 1.02  # of the best validation loss; less is noise


@dataclass(frozen=True)
class Overfitting:
    """The validation losses of a run that overfitted."""

    best_step: int
    best_loss: float
    last_loss: float

    def __str__(self) -> str:
        return f"validation loss rose from {self.best_loss:#.3g} (step {self.best_step:,}) to {self.last_loss:#.3g}"


def find_overfitting(metrics: Sequence[Mapping[str, Any]]) -> Overfitting | None:
    """The overfitting in the lines of metrics.jsonl: validation loss rose by more than 2 % while training loss fell."""
    evaluated = [(line["val_loss"], line["step"]) for line in metrics if "val_loss" in line]
    best_loss, best_step = min(evaluated, default=(0.0, 0))
    if not evaluated or evaluated[-1][0] <= _RISE * best_loss:
        return None
    losses = [(line["step"], line["loss"]) for line in metrics if "loss" in line]
    after = [loss for step, loss in losses if step > best_step]
    before = [loss for step, loss in losses if step <= best_step][-len(after) :]
    if not before or not after or statistics.fmean(after) >= statistics.fmean(before):
        return None
    return Overfitting(best_step, best_loss, evaluated[-1][0])


def note_better_checkpoint(path: Path, step: int, note: Notify) -> None:
    """Note if `step`, the newest checkpoint of the run `path`, is more than 2 % worse than the best one."""
    if not (path / RUN).is_file():  # a checkpoint
        return
    with suppress(UserError):  # a trainer may remove checkpoints meanwhile
        loss = saved_state(path, step).get("val_loss")
        for best_loss, best in rank_checkpoints(path)[:1]:
            if isinstance(loss, float) and best_loss < loss / _RISE:
                name, best_step = quote(f"{path}@{BEST}"), checkpoint_step(best)
                better = f"{name} (step {best_step:,}) has {best_loss:#.3g}"
                note(f"the newest checkpoint has validation loss {loss:#.3g}; {better}")
