"""The quickest way to train this model on this GPU, measured when a run begins and kept with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from gpt_cli.config import Config, RuntimeConfig
from gpt_cli.errors import Note
from gpt_cli.model.attention_kernel import attention_candidates, preferring
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.device import Runtime, wait_for
from gpt_cli.runtime.fastest import Candidate, fastest, seconds_per_call
from gpt_cli.training.batches import Batches
from gpt_cli.training.state import TrainingState
from gpt_cli.training.way import ASKED, COMPILED, EAGER, GRAPHS, Loss, gradients, launched

_STEPS_TO_WIN_BACK = 500  # the attention kernels take a second or two
_SECONDS_TO_WIN_BACK = 300.0  # of eager steps; two cold compilations take a minute or so
_GRAPHS_UP_TO = 200_000_000  # parameters: above, launching kernels is no part of the time, and gradients are copied
_TOLERANCE = {"fp32": 1e-3, "bf16": 0.05, "fp16": 0.05}


def wants_measuring(config: RuntimeConfig, device: torch.device) -> bool:
    """Whether a run on `device` takes what was measured: as asked; by itself where its bits need not repeat.

    What is fastest can change from one measurement to the next, and the last bits of a run with it.
    """
    return device.type == "cuda" and (config.measure if config.measure != "auto" else not config.deterministic)


def take_quickest(
    state: TrainingState, batches: Batches, config: Config, step: int, runtime: Runtime, note: Note
) -> None:
    """Set `state.way` to the one that its checkpoint kept, or to the fastest here for the steps from `step` on.

    Nothing else in `state` changes, no randomness is used, and nothing is raised: where measuring fails, `note` is
    told and the way stays as it is. Nothing is measured when the steps that are left would not win it back.
    """
    if not wants_measuring(config.runtime, runtime.device):
        return
    device = runtime.name
    if state.way.restore(device):
        if config.runtime.compile != "auto":
            state.way.use(state.way.attention, ASKED, device)  # what is asked for now
        note(f"attention by {state.way.attention}, steps {state.way.launch}: as measured when this run began")
        return
    steps = config.train.steps - step
    if steps < _STEPS_TO_WIN_BACK:
        return
    try:
        _measure(state, batches, config, step, runtime, note)
    except Exception as error:  # a driver's errors have no base in common; a true one comes back in the first step
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        note(f"measuring the fastest way to train does not work here ({reason}); going on without it")


def _measure(state: TrainingState, batches: Batches, config: Config, step: int, runtime: Runtime, note: Note) -> None:
    micro_batches, steps = batches.at(step), config.train.steps - step
    wait, tolerance = partial(wait_for, runtime.device), _TOLERANCE[runtime.precision]
    found = fastest(attention_candidates(config.model, len(micro_batches[0][0]), runtime), wait, tolerance)
    note(f"attention: {found.describe()}")
    attention = found.name
    if config.runtime.compile != "auto":  # it was said how; the kernel goes with either
        state.way.use(attention, ASKED, runtime.name)
        return
    losses: dict[str, Loss] = {EAGER: state.way.plain}
    launch = EAGER
    with _comparable(state.model, config):
        trial = partial(_trial, state, micro_batches[0], attention, runtime)
        plain = partial(trial, EAGER, state.way.plain)
        plain()
        if steps * len(micro_batches) * seconds_per_call(plain, wait) >= _SECONDS_TO_WIN_BACK:
            names = (COMPILED, GRAPHS) if _may_replay(state.model) else (COMPILED,)
            losses |= {name: launched(state.way.plain, name) for name in names}
            candidates: dict[str, Candidate] = {name: partial(trial, name, loss) for name, loss in losses.items()}
            found = fastest(candidates, wait, tolerance)
            note(f"forward and backward: {found.describe()}")
            launch = found.name
    state.way.use(attention, launch, runtime.name, losses[launch])
    if GRAPHS in losses and launch != GRAPHS:
        # Graphs keep the activations of a step for ever. What is still wanted compiled comes back from the disk.
        torch.compiler.reset()
        torch.cuda.empty_cache()


def _may_replay(model: GPT) -> bool:
    """Whether CUDA graphs are worth a try. On AMD's GPUs they trained wrongly, unnoticed (pytorch/pytorch#187715)."""
    return torch.version.hip is None and sum(p.numel() for p in model.parameters()) <= _GRAPHS_UP_TO


def _trial(
    state: TrainingState,
    batch: tuple[Tensor, Tensor],
    attention: str,
    runtime: Runtime,
    launch: str,
    compute: Loss,
) -> list[Tensor]:
    """The loss of one micro-batch and its gradients, as a step computes them."""
    learning = [p for p in state.parameters if p.requires_grad]
    with preferring(attention):
        with runtime.autocast():
            loss = compute(*batch) / 1
        return [loss.detach(), *gradients(state.loss_scale.apply(loss), learning, launch)]


@contextmanager
def _comparable(model: GPT, config: Config) -> Iterator[None]:
    """Within: two ways to compute `model` must agree, and cannot agree by chance. Afterwards it is as it was.

    Dropout is off, whose noise differs between a compiled and an eager step. Weights that begin as zeros, and would
    keep any error of what lies behind them out of the gradients, are small noise.
    """
    zeros = [p for p in model.parameters() if not bool(p.detach().any())]
    before = [p.detach().clone() for p in zeros]
    generator = torch.Generator().manual_seed(0)
    noisy = config.model.dropout > 0 or config.model.attention_dropout > 0
    with torch.no_grad():
        for p in zeros:
            p.copy_(0.02 * torch.randn(p.shape, generator=generator))
    was_training = model.training
    if noisy:
        model.eval()
    try:
        yield
    finally:
        if noisy:
            model.train(was_training)
        with torch.no_grad():
            for p, value in zip(zeros, before, strict=True):
                p.copy_(value)
