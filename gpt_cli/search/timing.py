"""Seconds of training steps."""

import time
from collections.abc import Iterable

from gpt_cli.config import Config
from gpt_cli.runtime.device import Runtime, synchronize
from gpt_cli.training.batches import Batches
from gpt_cli.training.example_batches import ExampleBatches
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step


def time_steps(
    state: TrainingState, batches: Batches | ExampleBatches, config: Config, runtime: Runtime, steps: Iterable[int]
) -> float:
    """Seconds of all `steps` together, at a learning rate of 0.

    The GPU is synchronized before the first step and after the last one only, as in a run.
    """
    synchronize(runtime.device)
    started = time.perf_counter()
    for step in steps:
        train_step(state, batches.at(step), config, step, 0.0, runtime)
    synchronize(runtime.device)
    return time.perf_counter() - started
