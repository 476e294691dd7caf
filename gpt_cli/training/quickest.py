"""The quickest way to train this model on this GPU, measured when a run begins and kept with it.

One after the other: the kernel of attention; how loss and gradients are launched; where that is not as written, too,
whether the update is compiled, and whether a whole step is one launch.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from gpt_cli.config import Config, RuntimeConfig
from gpt_cli.errors import Note
from gpt_cli.model.attention_kernel import attention_candidates, preferring
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.device import Runtime, wait_for
from gpt_cli.runtime.fastest import Candidate, Fastest, fastest, seconds_per_call
from gpt_cli.training.batches import Batches, MicroBatches
from gpt_cli.training.gradients import add_gradients
from gpt_cli.training.state import TrainingState
from gpt_cli.training.trial import Trials
from gpt_cli.training.update import COMPILER, TensorUpdate, make_update, most_norm, update
from gpt_cli.training.way import ASKED, COMPILED, EAGER, GRAPHS, WHOLE, Loss, UpdateBy, gradients, launched
from gpt_cli.training.whole_step import WholeStep

_STEPS_TO_WIN_BACK = 500  # the attention kernels take a second or two
_SECONDS_TO_WIN_BACK = 300.0  # of eager steps; two cold compilations take a minute or so
_GRAPHS_UP_TO = 200_000_000  # parameters: above, launching kernels is no part of the time, and gradients are copied
_TOLERANCE = {"fp32": 1e-3, "bf16": 0.05, "fp16": 0.05}
_MUON_ROUNDS = 2.0  # times that for an update: Muon's iterations make what was rounded larger
_AVERAGE_WEIGHT = 0.5  # in a trial of the update


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
    told and the way stays as it was until then. Nothing is measured when the steps that are left would not win it back.
    """
    if not wants_measuring(config.runtime, runtime.device):
        return
    device = runtime.name
    if state.way.restore(device):
        if config.runtime.compile != "auto":
            state.way.use(state.way.attention, ASKED, device)  # what is asked for now
        else:
            equip(state, config, runtime, compile_update=state.way.saved_update() == COMPILED)
        note(f"attention by {state.way.attention}, steps {state.way.launch}: as measured when this run began")
        return
    steps = config.train.steps - step
    if steps < _STEPS_TO_WIN_BACK:
        return
    try:
        _measure(state, batches, config, step, runtime, note)
    except Exception as error:  # a driver's errors have no base in common; a true one comes back in the first step
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        rest = "without it" if state.way.device is None else "with what was found before"
        note(f"measuring the fastest way to train does not work here ({reason}); going on {rest}")


def _measure(state: TrainingState, batches: Batches, config: Config, step: int, runtime: Runtime, note: Note) -> None:
    micro_batches = batches.at(step)
    _measure_loss(state, micro_batches, config, config.train.steps - step, runtime, note)
    launch = state.way.launch
    if launch not in (COMPILED, GRAPHS):
        return
    try:
        with _comparable(state.model, config):
            found = measure_update(state, config, runtime, COMPILER)
            note(f"update: {found.describe()}")
            equip(state, config, runtime, compile_update=found.name == COMPILED)
            if len(micro_batches) == 1 and _may_replay(state.model):
                _measure_whole(state, micro_batches[0], config, runtime, note)
    finally:
        torch.cuda.empty_cache()  # the copies were as large as weights and optimizer
    if launch == GRAPHS and state.way.launch == WHOLE:
        _let_go_of_graphs()


def _measure_loss(
    state: TrainingState, micro_batches: MicroBatches, config: Config, steps: int, runtime: Runtime, note: Note
) -> None:
    """Take the quickest kernel of attention and, for so many steps, the quickest launch of loss and gradients."""
    tolerance = _TOLERANCE[runtime.precision]
    found = _fastest(attention_candidates(config.model, len(micro_batches[0][0]), runtime), runtime, tolerance)
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
        seconds = seconds_per_call(plain, partial(wait_for, runtime.device))
        if steps * len(micro_batches) * seconds >= _SECONDS_TO_WIN_BACK:
            names = (COMPILED, GRAPHS) if _may_replay(state.model) else (COMPILED,)
            losses |= {name: launched(state.way.plain, name) for name in names}
            candidates: dict[str, Candidate] = {name: partial(trial, name, loss) for name, loss in losses.items()}
            found = _fastest(candidates, runtime, tolerance)
            note(f"forward and backward: {found.describe()}")
            launch = found.name
    state.way.use(attention, launch, runtime.name, losses[launch])
    if GRAPHS in losses and launch != GRAPHS:
        _let_go_of_graphs()


def measure_update(state: TrainingState, config: Config, runtime: Runtime, backend: str | None) -> Fastest:
    """The update as written, and as `backend` compiles it: on copies of `state`, which stays as it is.

    They are compared on noise, whose matrices have no tiny singular values that Muon would make large.
    """
    learning = [p for p in state.parameters if p.requires_grad]
    generator = torch.Generator(runtime.device).manual_seed(0)
    noise = [torch.randn(p.shape, generator=generator, device=p.device) for p in learning]

    def trial(compute: UpdateBy) -> list[Tensor]:
        for parameter, gradient in zip(learning, torch._foreach_mul(noise, 1.0), strict=True):
            parameter.grad = gradient  # which is used up
        return [compute(1.0, _AVERAGE_WEIGHT)]

    as_written: UpdateBy = partial(make_update, state, most_norm(config.optim))
    ways: dict[str, UpdateBy] = {EAGER: as_written, COMPILED: TensorUpdate(state, config.optim, backend)}
    with Trials.opened(state) as trials:
        candidates = {name: partial(trials.of, partial(trial, way), exactly=True) for name, way in ways.items()}
        return _fastest(candidates, runtime, _MUON_ROUNDS * _TOLERANCE[runtime.precision])


def _measure_whole(
    state: TrainingState, batch: tuple[Tensor, Tensor], config: Config, runtime: Runtime, note: Note
) -> None:
    """Launch the whole step as one, if that is quicker than loss, gradients and update one after the other."""
    way, loss = state.way, launched(state.way.plain, WHOLE)
    whole = whole_step(state, config, runtime, loss)

    def apart() -> tuple[Tensor, Tensor]:
        computed = add_gradients(state, *batch, 1, runtime), update(state, config.optim, 0, 1.0)
        state.optimizer.zero_grad()
        return computed

    with Trials.opened(state) as trials:
        recorded = partial(whole.take, batch, 1.0, state.average.weight(0))
        steps: dict[str, Candidate] = {way.launch: apart, WHOLE: recorded}
        candidates = {name: partial(trials.of, take, exactly=False) for name, take in steps.items()}
        found = _fastest(candidates, runtime, _TOLERANCE[runtime.precision])
        whole.forget()  # it was recorded where the copies are
    note(f"step: {found.describe()}")
    if found.name == WHOLE:
        compile_update = way.update is not None
        way.use(way.attention, WHOLE, runtime.name, loss)
        equip(state, config, runtime, compile_update=compile_update)


def equip(state: TrainingState, config: Config, runtime: Runtime, *, compile_update: bool) -> None:
    """Give the way of `state` its compiled update, if it has one, and its whole step, if that is how it is launched."""
    way = state.way
    way.update = TensorUpdate(state, config.optim, COMPILER) if compile_update else None
    if way.launch == WHOLE:
        way.whole = whole_step(state, config, runtime, way.loss)


def whole_step(state: TrainingState, config: Config, runtime: Runtime, loss: Loss) -> WholeStep:
    """A whole step that updates as the way of `state` does."""
    backend = None if state.way.update is None else COMPILER
    return WholeStep(state, runtime, loss, TensorUpdate(state, config.optim, backend))


def _fastest(candidates: Mapping[str, Candidate], runtime: Runtime, tolerance: float) -> Fastest:
    return fastest(candidates, partial(wait_for, runtime.device), tolerance)


def _let_go_of_graphs() -> None:
    """Graphs keep the activations of a step for ever. What is still wanted compiled comes back from the disk."""
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
