"""Overfitting: a validation loss that rose again, and the better checkpoint that is kept."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from gpt_cli.errors import Notify, UserError
from gpt_cli.run.checkpoint import checkpoint_step, rank_checkpoints, saved_state
from gpt_cli.run.find_run import BEST
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
    evaluated = [line for line in metrics if "val_loss" in line]
    best = min(evaluated, key=lambda line: float(line["val_loss"]), default=None)
    if best is None or evaluated[-1]["val_loss"] <= _RISE * best["val_loss"]:
        return None
    losses = [(line["step"] > best["step"], line["loss"]) for line in metrics if "loss" in line]
    after = [loss for is_after, loss in losses if is_after]
    before = [loss for is_after, loss in losses if not is_after][-len(after) :]
    if not before or not after or statistics.fmean(after) >= statistics.fmean(before):
        return None
    return Overfitting(best["step"], best["val_loss"], evaluated[-1]["val_loss"])


def note_better_checkpoint(path: Path, step: int, note: Notify) -> None:
    """Note if `step`, the newest checkpoint of the run at `path`, is more than 2 % worse than the best one.

    Nothing where `path` is a checkpoint.
    """
    if not (path / RUN).is_file():
        return
    with suppress(UserError):  # a trainer may remove checkpoints meanwhile
        loss = saved_state(path, step).get("val_loss")
        ranked = rank_checkpoints(path)
        if not isinstance(loss, float) or not ranked or ranked[0][0] >= loss / _RISE:
            return
        best_loss, best = ranked[0]
        best_step, name = checkpoint_step(best), quote(f"{path}@{BEST}")
        note(f"the newest checkpoint has validation loss {loss:#.3g}; {name} (step {best_step:,}) has {best_loss:#.3g}")
