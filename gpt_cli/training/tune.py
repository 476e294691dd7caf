"""A learning-rate range test (Smith, 2017, section 3.3): one short run whose learning rate grows until it fails."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpt_cli.config import Config
from gpt_cli.corpus.build import prepare_corpus
from gpt_cli.errors import UserError
from gpt_cli.runtime.device import open_runtime
from gpt_cli.training.batches import Batches, on_device
from gpt_cli.training.loop import train_step
from gpt_cli.training.state import TrainingState

_DIVERGED = 1.0  # nats above the best: it does not come back
_MEMORY = 0.9  # of the moving average of losses, per step
_MARGIN = 4.0  # below the rate at which the loss was lowest: a whole run has to stand it, not one step


@dataclass(frozen=True)
class RangeTest:
    """Training losses (nats per token) over learning rates, and the rate proposed."""

    lr: list[float]
    loss: list[float]
    smooth: list[float]
    """A moving average of `loss`, free of the bias of its beginning."""
    proposed_lr: float
    """For optim.lr."""
    proposed_adamw_lr: float | None
    """For optim.adamw_lr, in the config's ratio to optim.lr; None where Muon is not used."""
    config_lr: float

    def to_json(self) -> dict[str, Any]:
        """All of it by name."""
        return asdict(self)


def lr_range_test(config: Config, note: Callable[[str], None], steps: int = 100, factor: float = 30.0) -> RangeTest:
    """Train for at most `steps` while the rate grows from optim.lr / factor to optim.lr * factor.

    Under Muon, optim.adamw_lr grows alike, so that the proposal is for both, their ratio kept. Nothing is written.
    Raises UserError where no rate made the loss fall.
    """
    runtime = open_runtime(config.runtime)
    corpus = prepare_corpus(config.data, config.tokenizer, note=note)
    batches = Batches.of(config, on_device(corpus.train, runtime.device))
    state = TrainingState.fresh(config, corpus.tokenizer.vocab_size, runtime, note)
    rates: list[float] = []
    losses: list[float] = []
    for step in range(steps):
        multiplier = factor ** (2.0 * step / max(1, steps - 1) - 1.0)
        loss, _ = train_step(state, batches.at(step), config, step, multiplier, runtime)
        value = loss.item()  # of the weights before this step's update
        if not math.isfinite(value) or (losses and value > min(losses) + _DIVERGED + math.log(2)):
            break
        rates.append(multiplier * config.optim.lr)
        losses.append(value)
    smooth = moving_average(losses)
    lr, optim = propose(rates, smooth), config.optim
    adamw_lr = float(f"{lr * optim.adamw_lr / optim.lr:.2g}") if optim.name == "muon" else None
    return RangeTest(rates, losses, smooth, lr, adamw_lr, optim.lr)


def moving_average(losses: Sequence[float]) -> list[float]:
    """Each loss averaged with those before it, weights falling by _MEMORY a step, divided by their sum."""
    averages, total, weight = [], 0.0, 0.0
    for loss in losses:
        total, weight = _MEMORY * total + (1 - _MEMORY) * loss, _MEMORY * weight + (1 - _MEMORY)
        averages.append(total / weight)
    return averages


def propose(rates: Sequence[float], smooth: Sequence[float]) -> float:
    """The rate at the lowest smoothed loss over _MARGIN, to two digits. Raises UserError where the loss never fell."""
    if len(smooth) < 2 or min(smooth) >= smooth[0]:
        raise UserError(
            "no learning rate tried made the loss fall", hint="try a smaller optim.lr, or look at the text and model"
        )
    lowest = min(range(len(smooth)), key=smooth.__getitem__)
    return float(f"{rates[lowest] / _MARGIN:.2g}")
