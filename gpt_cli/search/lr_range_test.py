"""A learning-rate range test (Smith, 2017, section 3.3): one short run whose learning rate grows until it fails."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gpt_cli.config import Config, load_config
from gpt_cli.config.keys import replace_keys
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.distributed.world import ALONE
from gpt_cli.errors import Notify, UserError
from gpt_cli.runtime.device import restoring_settings, setup_runtime
from gpt_cli.training.example_batches import open_batches
from gpt_cli.training.init_from import initial_checkpoint
from gpt_cli.training.labelled_rows import with_labels
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step

_DIVERGED = 1.0  # nats above the lowest loss
_MEMORY = 0.9  # decay of the moving average of losses, per step
_MARGIN = 4.0  # the rate of the lowest loss is divided by it: a whole run must bear the rate, not one step


@dataclass(frozen=True)
class RangeTest:
    """Training losses (nats per `unit`) over learning rates, and the rate proposed."""

    lr: list[float]
    loss: list[float]
    smooth: list[float]
    """A moving average of `loss`, free of the bias of its beginning."""
    proposed_lr: float
    """For `key`."""
    proposed_adamw_lr: float | None
    """For optim.adamw_lr, in the config's ratio to optim.lr; None where one of them alone is used."""
    config_lr: float
    unit: Literal["token", "text"] = "token"
    """A text where classes are learned, else a token."""
    key: str = "optim.lr"
    """The key of the rates."""


@restoring_settings()
def lr_range_test(config: Config, note: Notify, steps: int = 100, factor: float = 30.0) -> RangeTest:
    """Train for at most `steps` while the rate grows from the config's / factor to the config's * factor.

    It is that of optim.lr, or of optim.adamw_lr where Muon updates nothing, as with LoRA. Under Muon, both grow in the
    same ratio. Starts from train.init_from or from random weights, whatever the run directory holds. Writes nothing.
    Raises UserError if no rate made the loss fall, and as `initial_checkpoint`.
    """
    runtime = replace(setup_runtime(config.runtime), world=ALONE)  # process 0 proposes, while the others wait
    corpus = prepare_corpus(config.data, config.tokenizer, note=note)
    config = with_labels(config, corpus)
    batches = open_batches(config, corpus, runtime.device, note)
    initial = initial_checkpoint(config.model_copy(update={"run_dir": None}), corpus.tokenizer, note)
    state = TrainingState.initialize(config, corpus.tokenizer.vocab_size, runtime, note, initial)
    optim, key = config.optim, config.rate_keys[0]
    peak_lr = optim.peak_lr if key == "optim.lr" else optim.adamw_lr
    rates: list[float] = []
    losses: list[float] = []
    for step in range(steps):
        multiplier = factor ** (2.0 * step / max(1, steps - 1) - 1.0)
        loss, _ = train_step(state, batches.at(step), config, step, multiplier, runtime)
        value = loss.item()  # of the weights before this step's update
        if not math.isfinite(value) or (losses and value > min(losses) + _DIVERGED + math.log(2)):
            break
        rates.append(multiplier * peak_lr)
        losses.append(value)
    smooth = debiased_ema(losses)
    lr = suggest_lr(rates, smooth)
    adamw_lr = float(f"{lr * optim.adamw_lr / peak_lr:.2g}") if len(config.rate_keys) == 2 else None
    return RangeTest(rates, losses, smooth, lr, adamw_lr, peak_lr, config.task.predicted, key)


def with_proposed_lr(config: Config, note: Notify) -> Config:
    """`config` with a number for `optim.lr: auto`: that of its run if there is one, else that of a range test.

    Raises what `lr_range_test` raises.
    """
    assert config.run_dir is not None
    saved_config = Path(config.run_dir, "config.yaml")
    if saved_config.is_file():
        optim = load_config(saved_config).optim
        rates = {"optim.lr": optim.lr, "optim.adamw_lr": optim.adamw_lr}
    else:
        test = lr_range_test(config, note)
        rates = {"optim.lr": test.proposed_lr}
        if test.proposed_adamw_lr is not None:
            rates["optim.adamw_lr"] = test.proposed_adamw_lr
        proposal = " ".join(f"{key}={rate:g}" for key, rate in rates.items())
        note(f"{proposal}: proposed by a range test of {len(test.lr)} steps")
    return replace_keys(config, rates)


def debiased_ema(losses: Sequence[float]) -> list[float]:
    """Each loss averaged with those before it, weights falling by _MEMORY a step, divided by their sum."""
    averages, total, weight = [], 0.0, 0.0
    for loss in losses:
        total, weight = _MEMORY * total + (1 - _MEMORY) * loss, _MEMORY * weight + (1 - _MEMORY)
        averages.append(total / weight)
    return averages


def suggest_lr(rates: Sequence[float], smooth: Sequence[float]) -> float:
    """The rate at the lowest smoothed loss over _MARGIN, to two digits. Raises UserError where the loss never fell."""
    if len(smooth) < 2 or min(smooth) >= smooth[0]:
        raise UserError(
            "no learning rate tried made the loss fall",
            hint="look at the text and the model, and whether it has anything left to learn",
        )
    lowest = min(range(len(smooth)), key=smooth.__getitem__)
    return float(f"{rates[lowest] / _MARGIN:.2g}")
