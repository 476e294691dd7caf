"""A whole step, recorded and replayed, and an update compiled as one graph, are the step and the update as written."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tape import recorder
from test_quickest import fresh, good, on_a_pretended_gpu
from test_training import make_config, run, timeless, weights
from torch._dynamo.utils import counters

from gpt_cli.model.attention_kernel import TORCH
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.training import quickest, update, whole_step
from gpt_cli.training.loop import train_step
from gpt_cli.training.loss_scale import LossScale
from gpt_cli.training.quickest import equip, take_quickest
from gpt_cli.training.state import TrainingState
from gpt_cli.training.trial import on_copies, trial_tensors
from gpt_cli.training.update import COMPILER, TensorUpdate
from gpt_cli.training.way import COMPILED, EAGER, WHOLE

ONE = ("runtime.engine=torch", "train.micro_batch_size=null", "runtime.precision=fp32")
RECIPES = {
    "muon": (),
    "adamw": ("optim.name=adamw", "optim.weight_decay=0.1", "model.bias=true"),
    "average": ("optim.ema=0.9", "optim.weight_decay=0.1"),
    "no clipping": ("optim.grad_clip=null", "model.tie_embeddings=true"),
    "hard clipping": ("optim.grad_clip=0.01", "optim.name=adamw", "optim.ema=0.5"),
    "micro-batches": ("train.micro_batch_size=2",),
    "lora": ("lora.rank=2",),
}


def with_scale(state, scaled):
    return replace(state, loss_scale=LossScale(scaled))


def steps_of(*overrides, by=None, scaled=False, steps=6):
    """The state after some steps with their losses and norms; `by` prepares the state."""
    lora = overrides == RECIPES["lora"]  # whose config wants a run to begin from
    config, runtime, state, batches = fresh(*ONE, *(() if lora else overrides))
    if lora:
        config = config.model_copy(update={"lora": config.lora.model_copy(update={"rank": 2})})
        state = TrainingState.fresh(config, 11, runtime, print)
    state = with_scale(state, scaled)
    if by is not None:
        by(state, config, runtime)
    seen = []
    for step in range(steps):
        taken = state.way.taking(train_step)
        seen.append(taken(state, batches.at(step), config, step, 1.0 - step / 10, runtime))
    return state, [(loss.clone(), norms.clone()) for loss, norms in seen]


def same(one, other, rtol):
    ones, others = ([*trial_tensors(state), *(t for pair in seen for t in pair)] for state, seen in (one, other))
    for a, b in zip(ones, others, strict=True):
        assert (a - b).float().norm() <= rtol * b.float().norm() + (1e-7 if rtol else 0.0)


def updating_by(backend):
    def prepare(state, config, runtime):
        state.way.update = TensorUpdate(state, config.optim, backend)

    return prepare


def whole(monkeypatch):
    """Prepares a state that is recorded by a tape, at its third step."""

    def prepare(state, config, runtime):
        monkeypatch.setattr(whole_step, "record", recorder(lambda: trial_tensors(state)))
        monkeypatch.setattr(quickest, "launched", good)
        state.way.use("torch", WHOLE, "here", state.way.plain)
        equip(state, config, runtime, compile_update=False)

    return prepare


# The update


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("scaled", [False, True])
def test_an_update_by_tensors_is_the_one_by_numbers(recipe, scaled):
    plain = steps_of(*RECIPES[recipe], scaled=scaled)
    same(steps_of(*RECIPES[recipe], by=updating_by(None), scaled=scaled), plain, rtol=1e-4)


@pytest.mark.parametrize(("recipe", "scaled"), [("average", False), ("adamw", True)])
def test_an_update_compiles_as_one_graph_once_and_is_the_one_as_written(recipe, scaled):
    torch._dynamo.reset()
    counters.clear()
    plain = steps_of(*RECIPES[recipe], scaled=scaled)
    same(steps_of(*RECIPES[recipe], by=updating_by("aot_eager"), scaled=scaled), plain, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == 1  # neither the step nor the rate makes another
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # a compiler may have something to say about a machine
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("scaled", [False, True])
def test_what_the_compiler_makes_of_an_update_is_the_one_as_written(recipe, scaled):
    torch._dynamo.reset()
    counters.clear()
    plain = steps_of(*RECIPES[recipe], scaled=scaled)
    same(steps_of(*RECIPES[recipe], by=updating_by(COMPILER), scaled=scaled), plain, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == 1


def test_an_evaluation_between_updates_makes_the_compiler_begin_no_anew():
    torch._dynamo.reset()
    config, runtime, state, batches = fresh(*ONE, "optim.ema=0.9")
    updating_by("aot_eager")(state, config, runtime)
    counters.clear()
    for step in range(4):
        train_step(state, batches.at(step), config, step, 1.0, runtime)
        with state.average.applied():
            state.model(batches.at(step)[0][0])
    assert counters["stats"]["unique_graphs"] == 1


def test_an_overflow_is_taken_back_by_tensors_as_it_is_by_numbers():
    def overflowing(by):
        config, runtime, state, batches = fresh(*ONE, "optim.ema=0.9")
        state = with_scale(state, True)
        by(state, config, runtime)
        for step in range(4):
            if step == 2:
                before = [t.clone() for t in trial_tensors(state)]
                handle = state.model.head.weight.register_hook(lambda gradient: gradient * torch.inf)
            train_step(state, batches.at(step), config, step, 1.0, runtime)
            if step == 2:
                handle.remove()
                *kept, scale, good_updates = (a.equal(b) for a, b in zip(before, trial_tensors(state), strict=True))
                assert all(kept)
                assert not scale
                assert not good_updates
        return state, []

    same(overflowing(updating_by(None)), overflowing(lambda *_: None), rtol=1e-4)


def test_an_update_that_does_not_compile_is_made_as_written_once_told(capsys):
    def broken(graph, inputs):
        raise OSError("no C compiler here")

    torch._dynamo.reset()
    plain = steps_of()
    same(steps_of(by=updating_by(broken)), plain, rtol=0.0)
    assert capsys.readouterr().out.count("the compiled update does not work any more") == 1


# The whole step


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "micro-batches"])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_replayed_step_is_the_step_as_written(monkeypatch, recipe, scaled):
    plain = steps_of(*RECIPES[recipe], scaled=scaled)
    found = steps_of(*RECIPES[recipe], by=whole(monkeypatch), scaled=scaled)
    assert found[0].way.whole._replay is not None
    same(found, plain, rtol=1e-4)


def test_every_replay_has_the_noise_of_its_own_step(monkeypatch):
    changes = ("model.dropout=0.3", "model.attention_dropout=0.2")
    same(steps_of(*changes, by=whole(monkeypatch)), steps_of(*changes), rtol=1e-4)


def test_what_a_replay_gave_is_not_written_over_by_the_next(monkeypatch):
    _, seen = steps_of(by=whole(monkeypatch), steps=5)
    losses = [loss.item() for loss, _ in seen]
    assert len(set(losses)) == 5
    assert len({norms.data_ptr() for _, norms in seen[2:]}) == 3


def test_a_tape_that_forgets_what_changes_is_told_from_the_step(monkeypatch):
    """That the tape, in the place of a graph, would show a rate that is baked in."""
    monkeypatch.setattr(TensorUpdate, "set", lambda self, rate, weight: self.__dict__.update(rates=(rate, weight)))
    monkeypatch.setattr(TensorUpdate, "compute", lambda self: self._make(*map(torch.tensor, self.rates)))
    plain = steps_of()
    with pytest.raises(AssertionError):
        same(steps_of(by=whole(monkeypatch)), plain, rtol=1e-4)


def test_several_micro_batches_take_the_step_apart(monkeypatch):
    changes = ("train.micro_batch_size=2",)
    found = steps_of(*changes, by=whole(monkeypatch))
    assert found[0].way.whole._replay is None
    same(found, steps_of(*changes), rtol=0.0)


@pytest.mark.parametrize("fails_at", ["record", "replay"])
@pytest.mark.parametrize("error", [RuntimeError("not while capturing"), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_step_that_cannot_be_recorded_or_replayed_is_made_as_written_with_one_note(
    monkeypatch, capsys, fails_at, error
):
    def prepare(state, config, runtime):
        whole(monkeypatch)(state, config, runtime)

        def fail(*_):
            raise error

        monkeypatch.setattr(whole_step, "record", fail if fails_at == "record" else lambda compute: fail)

    found = steps_of(by=prepare)
    same(found, steps_of(), rtol=1e-4)
    assert capsys.readouterr().out.count("the whole step does not work any more") == 1
    assert (found[0].way.launch, found[0].way.whole) == (EAGER, None)


def test_a_step_as_written_that_does_not_fit_is_for_the_guard_of_memory(monkeypatch):
    def out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    config, runtime, state, batches = fresh(*ONE)
    whole(monkeypatch)(state, config, runtime)
    state.way.whole.loss = out_of_memory
    with pytest.raises(torch.OutOfMemoryError):
        state.way.taking(train_step)(state, batches.at(0), config, 0, 1.0, runtime)
    assert state.way.launch == WHOLE


# Measuring


def choosing(monkeypatch, wanted):
    """The real candidates, of which those `wanted` are said to be the fastest."""
    real, seen = quickest.fastest, []

    def biased(candidates, wait, tolerance):
        found = real(candidates, wait, tolerance)
        seen.append(found)
        return next((replace(found, name=name) for name in wanted if name in found.seconds), found)

    monkeypatch.setattr(quickest, "fastest", biased)
    return seen


def pretending(monkeypatch, state=None, wanted=(WHOLE, COMPILED, TORCH)):
    on_a_pretended_gpu(monkeypatch, good)
    if state is not None:
        monkeypatch.setattr(whole_step, "record", recorder(lambda: trial_tensors(state)))
    return choosing(monkeypatch, wanted)


@pytest.mark.parametrize("changes", [(), ("optim.name=adamw", "optim.ema=0.9"), ("model.dropout=0.2",)])
def test_measuring_update_and_whole_step_changes_no_tensor_and_finds_them_right(monkeypatch, changes):
    config, runtime, state, batches = fresh(*ONE, *changes)
    seen = pretending(monkeypatch, state)
    tensors = trial_tensors(state)
    before, places = [t.clone() for t in tensors], [t.data_ptr() for t in tensors]
    noise, lines = torch.get_rng_state(), []
    take_quickest(state, batches, config, 0, runtime, lines.append)
    assert [line.split(":")[0] for line in lines] == ["attention", "forward and backward", "update", "step"]
    assert seen[2].seconds.keys() == {EAGER, COMPILED}
    assert seen[3].seconds.keys() == {COMPILED, WHOLE}
    assert all(a.equal(b) for a, b in zip(before, trial_tensors(state), strict=True))
    assert [t.data_ptr() for t in trial_tensors(state)] == places
    assert all(p.grad is None for p in state.parameters)
    assert torch.get_rng_state().equal(noise)
    assert (state.way.launch, state.way.update is None) == (WHOLE, False)
    assert state.way.whole._replay is None  # what was recorded on copies is gone


def spoil_update(kind):
    real = update.make_update

    def wrong(state, max_norm, lr_multiplier, weight):
        if isinstance(lr_multiplier, torch.Tensor):
            if kind == "rate":
                lr_multiplier = 1.5 * lr_multiplier
            elif kind == "one gradient":
                state.model.head.weight.grad.mul_(0.5)
            elif kind == "average":
                weight = 0.5 * weight
        norms = real(state, max_norm, lr_multiplier, weight)
        if kind == "one square" and isinstance(lr_multiplier, torch.Tensor):
            state.optimizer.adamw.exp_avg_sq["norm.weight"].mul_(1.2)
        return norms

    return wrong


@pytest.mark.parametrize("kind", ["rate", "one gradient", "one square", "average"])
def test_an_update_that_is_not_the_one_as_written_is_not_taken_however_small_what_differs(monkeypatch, kind):
    config, runtime, state, batches = fresh(*ONE, "optim.ema=0.9", "train.micro_batch_size=2")
    pretending(monkeypatch)
    monkeypatch.setattr(update, "make_update", spoil_update(kind))
    lines = []
    take_quickest(state, batches, config, 0, runtime, lines.append)
    assert "not compiled: it differs by" in lines[2]
    assert state.way.update is None


def test_a_whole_step_that_is_not_the_step_apart_is_not_taken(monkeypatch):
    config, runtime, state, batches = fresh(*ONE)
    pretending(monkeypatch, state)
    honest = whole_step.record

    def forgetful(compute):
        replay = honest(compute)

        def stuck():
            results = replay()
            state.optimizer.muon.buffers["blocks.0.mlp.down.weight"].zero_()
            return results

        return stuck

    monkeypatch.setattr(whole_step, "record", forgetful)
    lines = []
    take_quickest(state, batches, config, 0, runtime, lines.append)
    assert "not whole: it differs by" in lines[3]
    assert (state.way.launch, state.way.whole) == (COMPILED, None)


def test_without_a_recorder_or_a_compiler_the_rest_stays_as_measured(monkeypatch):
    config, runtime, state, batches = fresh(*ONE)
    pretending(monkeypatch)  # here a graph cannot be recorded
    lines = []
    take_quickest(state, batches, config, 0, runtime, lines.append)
    assert "not whole: " in lines[3]
    assert (state.way.launch, state.way.update is None) == (COMPILED, False)


def test_where_there_is_no_memory_for_copies_the_launch_that_was_found_stays(monkeypatch):
    def no_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    config, runtime, state, batches = fresh(*ONE)
    pretending(monkeypatch)
    monkeypatch.setattr(quickest, "measure_update", no_memory)
    lines = []
    take_quickest(state, batches, config, 0, runtime, lines.append)
    assert lines[2].endswith("does not work here (CUDA out of memory); going on with what was found before")
    assert (state.way.launch, state.way.update, state.way.whole) == (COMPILED, None, None)


def test_a_choice_kept_before_updates_were_compiled_is_taken_up_with_the_update_as_written(monkeypatch):
    config, runtime, state, batches = fresh(*ONE)
    pretending(monkeypatch)
    state.way.saved = {"attention": "flash", "launch": COMPILED, "device": "cpu"}
    take_quickest(state, batches, config, 5, runtime, print)
    assert (state.way.attention, state.way.launch, state.way.update) == ("flash", COMPILED, None)


def test_copies_are_given_up_even_where_something_fails_within():
    tensors = [torch.ones(2), torch.nn.Parameter(torch.ones(3))]
    places = [t.data_ptr() for t in tensors]

    def fail():
        with on_copies(tensors), torch.no_grad():
            for tensor in tensors:
                tensor.zero_()
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        fail()
    assert [t.data_ptr() for t in tensors] == places
    assert all(t.eq(1).all() for t in tensors)


# A run


def recording_runs(monkeypatch):
    """A run that is recorded by a tape: its state is known when it measures, or takes up what was measured."""
    real = quickest.equip

    def known(state, config, runtime, *, compile_update):
        monkeypatch.setattr(whole_step, "record", recorder(lambda: trial_tensors(state)))
        real(state, config, runtime, compile_update=compile_update)

    monkeypatch.setattr(quickest, "equip", known)


def test_a_run_of_whole_steps_resumes_bit_for_bit_and_its_checkpoints_are_of_the_usual_form(
    tmp_path, monkeypatch, capsys
):
    stop_at = 6
    changes = ("runtime.engine=torch", "optim.ema=0.9", "model.dropout=0.2")
    plain = run(make_config(tmp_path, *changes, name="plain"))
    pretending(monkeypatch)
    recording_runs(monkeypatch)
    complete = run(make_config(tmp_path, *changes, name="whole"))
    config = make_config(tmp_path, *changes, name="stopped")
    with monkeypatch.context() as once:
        steps = []
        real = whole_step.WholeStep.take

        def signalling(self, *arguments):
            steps.extend(arguments[3:])  # the seed, which measuring does without
            if len(steps) == stop_at:
                signal.raise_signal(signal.SIGTERM)
            return real(self, *arguments)

        once.setattr(whole_step.WholeStep, "take", signalling)
        assert run(config).steps == stop_at
    second = run(config)
    assert "steps whole: as measured when this run began" in capsys.readouterr().out
    assert weights(second) == weights(complete)
    assert timeless(second.run_dir) == timeless(complete.run_dir)
    assert second.val_loss == pytest.approx(plain.val_loss, rel=1e-3)
    (state,), (usual,) = (
        [json.loads((list_checkpoints(Path(s.run_dir))[0] / "state.json").read_text())] for s in (second, plain)
    )
    assert state.pop("way") == {"attention": "torch", "launch": WHOLE, "update": COMPILED, "device": "cpu"}
    assert state.keys() == usual.keys()
