"""The summary of a run, from its directory."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpt_cli.config import Config
from gpt_cli.files import read_sums
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import MODEL, best_checkpoint, checkpoint_path, checkpoint_step, saved_state
from gpt_cli.run.log import read_events, read_metrics
from gpt_cli.run.overfitting import Overfitting, find_overfitting
from gpt_cli.runtime.signals import StopRequest
from gpt_cli.training.metrics_logger import MetricsLogger
from gpt_cli.training.stopping import Stopping

PLANNED = "planned"
"""The event that has the `expected_loss` of a run."""


@dataclass(frozen=True)
class Summary:
    """The summary that `gpt train` prints; losses in nats per token, None where the saved step was not evaluated.

    `tokens_per_second` counts all the time that the run took, evaluations and samples included.
    """

    run_dir: str
    steps: int
    val_loss: float | None
    best_val_loss: float | None
    best_step: int | None
    """The step of best_val_loss; 0: before the first step, which is not saved unless it is the last."""
    bpc: float | None
    bpb: float | None
    accuracy: float | None
    """As is macro_f1, None where tokens are predicted instead of classes."""
    macro_f1: float | None
    val_tokens: float | None
    """Tokens of the validation split that were evaluated, where eval.max_tokens caps them; None: all."""
    train_seconds: float
    tokens_per_second: float
    parameters: int
    weights_sha256: str
    checkpoint: str
    best_checkpoint: str | None
    """The checkpoint of best_val_loss; None where best_step is 0, and where it is damaged or gone."""
    stopped: str
    exit_code: int
    overfitting: Overfitting | None = None
    """None, too, where the saved step was not evaluated."""
    ended_by: str | None = None
    """The key of the config that ended it before its last step, and could be lifted."""
    expected_loss: float | None = None
    """The val_loss that was predicted for a run of train.budget."""

    def to_json(self) -> dict[str, Any]:
        """The fields that `--json` prints: not the exit code, nor what follows from the others."""
        hidden = ("exit_code", "overfitting", "ended_by")
        return {name: value for name, value in asdict(self).items() if name not in hidden}


def summarise(
    run_dir: Path,
    step: int,
    config: Config,
    model: GPT,
    stopping: Stopping,
    request: StopRequest,
    logger: MetricsLogger,
) -> Summary:
    """The summary of the run in `run_dir`, whose last checkpoint, of `step`, has just been saved, or was before."""
    saved, best = checkpoint_path(run_dir, step), best_checkpoint(run_dir)
    if best is not None and saved_state(run_dir, checkpoint_step(best)).get("val_loss") != stopping.best_val_loss:
        best = None
    metrics = read_metrics(run_dir)
    evaluated = [line for line in metrics if "val_loss" in line]
    # After a signal, the last evaluation may be of an earlier step than the checkpoint: it is not reported as its loss.
    last_evaluation: dict[str, float] = next((line for line in reversed(evaluated) if line["step"] == step), {})
    # As saved: a run that was complete already took as long as it says.
    tokens, seconds = step * logger.tokens_per_step, float(saved_state(run_dir, step).get("seconds", logger.seconds))
    return Summary(
        run_dir=str(run_dir),
        steps=step,
        val_loss=last_evaluation.get("val_loss"),
        best_val_loss=stopping.best_val_loss,
        best_step=next((line["step"] for line in evaluated if line["val_loss"] == stopping.best_val_loss), None),
        bpc=last_evaluation.get("bpc"),
        bpb=last_evaluation.get("bpb"),
        accuracy=last_evaluation.get("accuracy"),
        macro_f1=last_evaluation.get("macro_f1"),
        val_tokens=last_evaluation.get("val_tokens"),
        train_seconds=round(seconds, 3),
        tokens_per_second=round(tokens / max(1e-9, seconds), 1),
        parameters=sum(p.numel() for p in model.parameters()),
        weights_sha256=read_sums(saved)[MODEL],
        checkpoint=str(saved),
        best_checkpoint=None if best is None else str(best),
        stopped=stopping.reason or "",
        exit_code=request.exit_code or 0,
        overfitting=find_overfitting(metrics) if last_evaluation else None,
        ended_by=stopping.key if step < config.train.steps else None,
        expected_loss=_expected_loss(run_dir),
    )


def _expected_loss(run_dir: Path) -> float | None:
    planned = [event.get("expected_loss") for event in read_events(run_dir) if event["event"] == PLANNED]
    return next((loss for loss in reversed(planned) if isinstance(loss, float)), None)
