"""The outcome of a run, read from its directory alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from gpt_cli.errors import UserError
from gpt_cli.run.checkpoint import checkpoint_step, list_checkpoints
from gpt_cli.run.log import read_events, read_metrics
from gpt_cli.run.run_files import RUN

State = Literal["new", "begun", "done", "failed", "pruned"]
_ENDS = ("started", "ended", "died", "killed", "restart loop")
_PERMANENT_ERRORS = ("UserError:", "RequestError:", "NonFiniteError:")  # they come again; a full disk or a lock may not


@dataclass(frozen=True)
class Outcome:
    """The progress of a run. Losses in nats per token; `evaluations` are (step, loss), the oldest first."""

    state: State = "new"
    steps: int = 0
    """The step that was saved or logged last; of a pruned run that of its last evaluation."""
    val_loss: float | None = None
    """The loss at the last step if done, or at the last evaluation if pruned."""
    bpb: float | None = None
    tokens: int = 0
    """Tokens trained on by then."""
    seconds: float = 0.0
    error: str | None = None
    evaluations: Sequence[tuple[int, float]] = field(default=(), repr=False)

    @property
    def is_final(self) -> bool:
        return self.state in ("done", "failed", "pruned")

    def pruned(self, step: int) -> "Outcome":
        """This run as one that was given up after its evaluation at `step`."""
        evaluations = [pair for pair in self.evaluations if pair[0] <= step]
        return replace(self, state="pruned", steps=step, val_loss=evaluations[-1][1], bpb=None, evaluations=evaluations)


def read_outcome(run_dir: Path, steps: int, *, ended: bool = False) -> Outcome:
    """The outcome of the run in `run_dir`, planned for this many `steps`.

    `ended`: its trainer reported that it is finished, which may be before the last step (train.patience).
    """
    if not (run_dir / RUN).is_file():
        return Outcome()
    try:
        lines = read_metrics(run_dir)
        events = [event for event in read_events(run_dir) if event["event"] in _ENDS]
    except UserError as error:  # a file that cannot be read
        return Outcome("failed", error=error.message)
    evaluated = [line for line in lines if "val_loss" in line]
    evaluations = [(int(line["step"]), float(line["val_loss"])) for line in evaluated]
    checkpoints = list_checkpoints(run_dir)
    saved = checkpoint_step(checkpoints[0]) if checkpoints else 0
    last = max([saved, *(int(line["step"]) for line in lines)])
    seconds = max((float(line.get("time", 0.0)) for line in lines), default=0.0)
    begun = Outcome("begun", steps=last, seconds=seconds, evaluations=evaluations)
    final = next((line for line in reversed(evaluated) if line["step"] == saved), None)
    if checkpoints and final is not None and (ended or saved >= steps):
        return replace(
            begun, state="done", steps=saved, val_loss=float(final["val_loss"]), bpb=final.get("bpb"),
            tokens=int(final.get("tokens", 0)),
        )  # fmt: skip
    message = str(events[-1].get("error", "")) if events and events[-1]["event"] == "died" else ""
    if message.startswith(_PERMANENT_ERRORS):
        return replace(begun, state="failed", error=message.partition(": ")[2])
    return begun
