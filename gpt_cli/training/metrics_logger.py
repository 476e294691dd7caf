"""Log a run: metrics, samples and events into its files, and to the console.

Losses stay on the device and are read one step late, so that the device never waits for the log.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpt_cli.config import Config
from gpt_cli.run.directory import RunDirectory
from gpt_cli.run.log import read_metrics
from gpt_cli.runtime.async_copy import AsyncHostCopy
from gpt_cli.training.batches import Batches
from gpt_cli.training.class_evaluation import ClassEvalMetrics
from gpt_cli.training.console import Console
from gpt_cli.training.evaluate import EvalMetrics
from gpt_cli.training.example_batches import ExampleBatches
from gpt_cli.training.health import SpikeDetector, nonfinite_error
from gpt_cli.training.state import TrainingState


@dataclass(frozen=True)
class _Pending:
    step: int
    figures: AsyncHostCopy  # the loss and the norm of the whole gradient
    grad_norms: Tensor  # (P,) one per parameter
    lr: float


class MetricsLogger:
    """The log of a run. `seconds` is its training time, that before a resume included."""

    def __init__(
        self,
        run: RunDirectory,
        console: Console,
        config: Config,
        state: TrainingState,
        start: int,
        seconds: float,
        batches: Batches | ExampleBatches,
    ) -> None:
        self.run, self.console, self.config, self.state = run, console, config, state
        # Norms have a long tail: of the steps of an ordinary run up to 1 % exceed one and a half times their mean.
        self.detectors = {"loss": SpikeDetector(), "gradient norm": SpikeDetector(least=2.0)}
        self.tokens_per_step, self.steps_per_epoch = batches.tokens_per_step, batches.steps_per_epoch
        self.past_val_losses = [line["val_loss"] for line in read_metrics(run.path) if "val_loss" in line]
        self._seconds_before, self._started = seconds, time.perf_counter()
        self._pending: _Pending | None = None
        self._last_read = (start, seconds)

    @property
    def seconds(self) -> float:
        """Seconds spent in the training loop so far."""
        return self._seconds_before + time.perf_counter() - self._started

    def step(self, step: int, loss: Tensor, grad_norms: Tensor, lr: float) -> None:
        """Log update number `step` (from 1): copy its figures to the host, and write those of the update before."""
        figures = AsyncHostCopy(torch.stack([loss, torch.linalg.vector_norm(grad_norms)]))
        self._read()
        self._pending = _Pending(step, figures, grad_norms, lr)

    def flush(self) -> None:
        """Write everything to the disk; call this before a checkpoint is saved."""
        self._read()
        self.run.log.sync()

    def _read(self) -> None:
        """Write the pending figures. Raises UserError if they are not finite, before the weights can be saved."""
        if (pending := self._pending) is None:
            return
        self._pending = None
        loss, grad_norm = pending.figures.read()
        # An fp16 overflow, where the scaler skips the update.
        is_skipped = self.state.grad_scaler.enabled and not math.isfinite(grad_norm)
        if not math.isfinite(loss) or not (math.isfinite(grad_norm) or is_skipped):
            raise nonfinite_error(pending.step, loss, pending.grad_norms, self.state)
        self._report_spikes(pending.step, {"loss": loss} if is_skipped else {"loss": loss, "gradient norm": grad_norm})
        if pending.step % self.config.log.every and pending.step != self.config.train.steps:
            return
        seconds = self.seconds
        step_before, seconds_before = self._last_read
        rate = (pending.step - step_before) * self.tokens_per_step / max(1e-9, seconds - seconds_before)
        self._last_read = (pending.step, seconds)
        self.run.log.metrics(
            pending.step,
            time=round(seconds, 3),
            tokens=pending.step * self.tokens_per_step,
            loss=loss,
            grad_norm=grad_norm,
            lr=pending.lr,
        )
        self.console.step(pending.step, loss, rate)

    def _report_spikes(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            mean = self.detectors[name].mean
            if self.detectors[name].update(value):
                self.run.log.event("spike", step=step, of=name, value=value, running_mean=mean)
                self.console.note(f"the {name} jumped to {value:.4g} at step {step:,}; its running mean is {mean:.4g}")

    def checkpoint_fields(self, val_loss: float | None, text_sha256: str) -> dict[str, Any]:
        """The state.json of a checkpoint: losses, seconds, text."""
        return {"val_loss": val_loss, "seconds": self.seconds, "text_sha256": text_sha256}

    def ran_out_of_memory(self, micro_batch_size: int, smaller: int) -> None:
        """Record that micro-batches did not fit in memory, and the smaller size from now on."""
        self.run.log.event("out of memory", micro_batch_size=micro_batch_size, smaller=smaller)
        self.console.note(
            f"out of memory with train.micro_batch_size {micro_batch_size}: continuing with {smaller}, the same batch"
            " in more passes"
        )

    def evaluation(self, step: int, evaluation: EvalMetrics | ClassEvalMetrics) -> float:
        """Record an evaluation of the weights after `step` updates; returns its loss."""
        self._read()
        if not math.isfinite(evaluation.loss):
            raise nonfinite_error(step, evaluation.loss, None, self.state)
        self.run.log.metrics(
            step,
            time=round(self.seconds, 3),
            tokens=step * self.tokens_per_step,
            epochs=round(step / self.steps_per_epoch, 4),
            **evaluation.metrics(),
        )
        self.console.evaluation(step, evaluation, self.seconds, self._seconds_left(step))
        return evaluation.loss

    def _seconds_left(self, step: int) -> float | None:
        """The training time to the last step, or to the end of `train.max_minutes`; None if it is not known."""
        train = self.config.train
        if not 0 < step < train.steps:
            return None
        by_steps = self.seconds / step * (train.steps - step)
        return by_steps if train.max_minutes is None else max(0.0, min(by_steps, 60 * train.max_minutes - self.seconds))

    def sample(self, step: int, prompt: str, text: str) -> None:
        """Record what the model wrote after `step` updates."""
        self.run.log.sample(step, prompt=prompt, text=text)
        self.console.sample(prompt + text)
