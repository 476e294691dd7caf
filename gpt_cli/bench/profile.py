"""Profile a training step by part of the model.

The parts are timed one after another, the device waited for at each border: their sum is a little more than a step
that runs freely. What no part claims of the forward pass is `rest of forward`.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gpt_cli.config import Config
from gpt_cli.runtime.device import Runtime, synchronize
from gpt_cli.shuffle import derive_seed
from gpt_cli.training.batches import Batches
from gpt_cli.training.engine import Engine
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import optimizer_step
from gpt_cli.training.torch_engine import TorchEngine

_MODEL_PARTS = ("embedding", "attention", "mlp", "norms", "rest of forward", "head and loss")
PARTS = ("batch", *_MODEL_PARTS, "backward", "optimizer")
"""Seconds of an eager step, by part."""
FUSED_PARTS = ("batch", "forward and backward", "optimizer")
"""Seconds of a step whose forward and backward pass are one call: of the C engine, or compiled."""


def engine_name(engine: Engine) -> str:
    if not isinstance(engine, TorchEngine):
        return "C"
    return "torch, eager" if engine.loss is engine.eager else "torch, compiled"


def profile_step(
    config: Config, state: TrainingState, batches: Batches, runtime: Runtime, steps: int
) -> dict[str, float]:
    """Seconds of a step by part, of the engine of `state`: the mean of `steps` steps, which change the weights.

    The norms of queries and keys count as attention; clipping the gradient counts as optimizer.
    """
    clock, engine = _Clock(runtime.device), state.engine
    eager = engine if isinstance(engine, TorchEngine) and engine.loss is engine.eager else None
    watched = [] if eager is None else list(_parts_of(state.model))
    handles = [handle for part, module in watched for handle in clock.watch(part, module)]
    try:
        for step in range(steps):
            with clock.timing("batch"):
                micro_batches = batches.at(step)
            for micro_step, (inputs, targets) in enumerate(micro_batches):
                seed = derive_seed(config.seed, "noise", step, micro_step)
                if eager is None:
                    with clock.timing("forward and backward"):
                        engine.forward_backward(inputs, targets, len(micro_batches), seed)
                    continue
                torch.manual_seed(seed)
                with clock.timing("forward"), runtime.autocast():
                    loss = eager.loss(inputs, targets) / len(micro_batches)
                with clock.timing("backward"):
                    state.grad_scaler.scale_loss(loss).backward()
            with clock.timing("optimizer"):
                optimizer_step(state, config.optim, step, 1.0)
                state.optimizer.zero_grad()
    finally:
        for handle in handles:
            handle.remove()
    spent = {part: seconds / steps for part, seconds in clock.seconds.items()}
    if eager is None:
        return {part: spent[part] for part in FUSED_PARTS}
    spent["head and loss"] = spent["forward"] - spent["to the head"]
    within = sum(spent[part] for part in ("embedding", "attention", "mlp", "norms"))
    spent["rest of forward"] = max(0.0, spent["to the head"] - within)
    return {part: spent[part] for part in PARTS}


def _parts_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Each module that is a part, with the part's name; the last norm ends what comes before the head."""
    names = {"embedding": "embedding", "attention": "attention", "mlp": "mlp"}
    names |= {"norm1": "norms", "norm2": "norms", "norm": "norms"}
    for path, module in model.named_modules():
        if path.count(".") in (0, 2) and (name := path.rpartition(".")[2]) in names:
            yield names[name], module
    yield "to the head", model.get_submodule("norm")


class _Clock:
    """Seconds by name, the device waited for before each look at the time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self._began: dict[str, float] = {}
        self._running = ""  # what `timing` times

    def now(self) -> float:
        synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Add the time of the block to `name`."""
        self._began[name], self._running = self.now(), name
        yield
        self.seconds[name] += self.now() - self._began[name]

    def watch(self, part: str, module: nn.Module) -> list[RemovableHandle]:
        """Add the forward passes of `module` to `part`; the time to the head ends with it."""
        if part == "to the head":
            return [module.register_forward_hook(partial(self._ends, part, "forward"))]
        return [
            module.register_forward_pre_hook(partial(self._begins, part)),
            module.register_forward_hook(partial(self._ends, part, part)),
        ]

    def _begins(self, part: str, _module: nn.Module, _inputs: Any) -> None:
        if self._running == "forward":  # what the backward pass computes again is of the backward pass
            self._began[part] = self.now()

    def _ends(self, part: str, since: str, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._running == "forward":
            self.seconds[part] += self.now() - self._began[since]
