"""What is measured changes the speed of a run and nothing else, is kept with it, and is given up where it fails."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_training import interrupt_at, make_config, run, timeless, weights

from gpt_cli.config import parse_config
from gpt_cli.model.attention import causal_attention, reference_attention
from gpt_cli.model.attention_kernel import KERNELS, TORCH, attention_candidates, preferring
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.runtime.device import Runtime, open_runtime
from gpt_cli.training import quickest, way
from gpt_cli.training.batches import Batches
from gpt_cli.training.evaluate import cross_entropy
from gpt_cli.training.loop import train_step
from gpt_cli.training.loss_scale import LossScale
from gpt_cli.training.quickest import take_quickest, wants_measuring
from gpt_cli.training.state import TrainingState
from gpt_cli.training.update import COMPILER
from gpt_cli.training.way import ASKED, COMPILED, EAGER, GRAPHS, gradients

TORCH_ENGINE = ("runtime.engine=torch", "train.micro_batch_size=2")
TINY = ("model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context_length=16", "train.batch_size=4")
CPU = torch.device("cpu")


class Replayed(torch.autograd.Function):
    """Loss and gradients in buffers that the next call writes again, as CUDA graphs keep them."""

    @staticmethod
    def forward(ctx, loss, memory, inputs, targets, *parameters):
        with torch.enable_grad():
            found = loss(inputs, targets)
            computed = [found.detach(), *torch.autograd.grad(found, parameters)]
        if not memory:
            memory.extend(t.clone() for t in computed)
        for buffer, tensor in zip(memory, computed, strict=True):
            buffer.copy_(tensor)
        ctx.memory = memory
        return memory[0].detach()

    @staticmethod
    def backward(ctx, upstream):
        for buffer in ctx.memory[1:]:
            buffer.mul_(upstream)
        return (None, None, None, None, *ctx.memory[1:])


def replayed(loss, memory):
    (model,) = loss.args
    return lambda inputs, targets: Replayed.apply(loss, memory, inputs, targets, *model.parameters())


def on_a_pretended_gpu(monkeypatch, launched):
    """Measure on this CPU, as if it were a GPU, with `launched` in the place of the compiler."""
    monkeypatch.setattr(quickest, "wants_measuring", lambda config, device: True)
    monkeypatch.setattr(quickest, "_STEPS_TO_WIN_BACK", 1)
    monkeypatch.setattr(quickest, "_SECONDS_TO_WIN_BACK", 0.0)
    monkeypatch.setattr(quickest, "launched", launched)
    monkeypatch.setattr(way, "launched", launched)
    monkeypatch.setattr(quickest, "COMPILER", None)


def preferring_graphs(monkeypatch, launch=GRAPHS):
    """The real candidates, of which CUDA graphs (or another `launch`) are said to be the fastest."""
    real = quickest.fastest

    def biased(candidates, wait, tolerance):
        found = real(candidates, wait, tolerance)
        return replace(found, name=launch) if launch in found.seconds else found

    monkeypatch.setattr(quickest, "fastest", biased)


def good(loss, launch):
    return replayed(loss, []) if launch == GRAPHS else loss


def fresh(*overrides):
    config = parse_config("", "t", [*TINY, *TORCH_ENGINE, "train.steps=1000", *overrides])
    runtime = open_runtime(config.runtime)
    state = TrainingState.fresh(config, 11, runtime, print)
    tokens = torch.randint(11, (500,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    return config, runtime, state, Batches.of(config, tokens)


@pytest.mark.parametrize(
    ("measure", "deterministic", "device", "wanted"),
    [
        ("auto", "true", "cuda", False),
        ("auto", "false", "cuda", True),
        ("true", "true", "cuda", True),
        ("false", "false", "cuda", False),
        ("true", "false", "cpu", False),
        ("true", "false", "mps", False),
    ],
)
def test_a_choice_by_measurement_is_made_on_a_gpu_where_bits_need_not_repeat(measure, deterministic, device, wanted):
    config = parse_config("", "t", [f"runtime.measure={measure}", f"runtime.deterministic={deterministic}"])
    assert wants_measuring(config.runtime, torch.device(device)) is wanted


@pytest.mark.parametrize("dropout", ["0.0", "0.3"])
def test_measuring_changes_nothing_but_the_way(monkeypatch, dropout):
    on_a_pretended_gpu(monkeypatch, good)
    preferring_graphs(monkeypatch)
    config, runtime, state, batches = fresh(f"model.dropout={dropout}", f"model.attention_dropout={dropout}")
    before = {name: t.clone() for tensors in state.tensors() for name, t in tensors.items()}
    assert any(not t.any() for name, t in before.items() if name.endswith("out.weight"))  # some begin as zeros
    noise, lines = torch.get_rng_state(), []
    take_quickest(state, batches, config, 0, runtime, lines.append)
    after = {name: t for tensors in state.tensors() for name, t in tensors.items()}
    assert all(after[name].equal(t) for name, t in before.items())
    assert all(p.grad is None for p in state.parameters)
    assert state.model.training
    assert torch.get_rng_state().equal(noise)
    assert state.way.launch == GRAPHS
    assert [line.split(":")[0] for line in lines] == ["attention", "forward and backward", "update"]
    assert all(name in lines[1] for name in (EAGER, COMPILED, GRAPHS))


def test_a_step_without_the_gradient_of_a_weight_is_not_taken_though_it_begins_as_zero(monkeypatch):
    name = "blocks.0.attention.qkv.weight"

    def without_it(loss, launch):
        (model,) = loss.args

        def compute(inputs, targets):
            weight = model.get_parameter(name)
            logits = torch.func.functional_call(model, {name: weight.detach()}, inputs)
            return cross_entropy(logits, targets) + 0.0 * weight.sum()

        return loss if launch == EAGER else compute

    on_a_pretended_gpu(monkeypatch, without_it)
    compiler_was_reset = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: compiler_was_reset.append(True))
    config, runtime, state, batches = fresh()
    state.way.loss(*batches.at(0)[0]).backward()
    assert not state.model.get_parameter(name).grad.any()  # behind an output projection of zeros
    lines = []
    take_quickest(state, batches, config, 0, runtime, lines.append)
    assert state.way.launch == EAGER
    assert compiler_was_reset == [True]  # what the graphs recorded is let go
    assert lines[1].endswith("not compiled: it differs by 1e+02 %; not graphs: it differs by 1e+02 %")


def test_candidates_that_do_not_compile_leave_the_plain_step(monkeypatch):
    def no_compiler(loss, launch):
        def refuse(inputs, targets):
            raise OSError("no C compiler here")

        return loss if launch == EAGER else refuse

    on_a_pretended_gpu(monkeypatch, no_compiler)
    config, runtime, state, batches = fresh()
    lines = []
    take_quickest(state, batches, config, 0, runtime, lines.append)
    assert state.way.launch == EAGER
    assert "not compiled: no C compiler here; not graphs: no C compiler here" in lines[1]


def test_graphs_are_not_tried_for_a_large_model_nor_where_they_train_wrongly(monkeypatch):
    on_a_pretended_gpu(monkeypatch, good)
    for room, name, value in ((quickest, "_GRAPHS_UP_TO", 100), (torch.version, "hip", "7.0")):
        with monkeypatch.context() as once:
            once.setattr(room, name, value)
            config, runtime, state, batches = fresh()
            lines = []
            take_quickest(state, batches, config, 0, runtime, lines.append)
        assert COMPILED in lines[1]
        assert GRAPHS not in lines[1]


def test_where_measuring_fails_the_way_stays_as_asked_with_one_note(monkeypatch):
    def failing(candidates, wait, tolerance):
        raise RuntimeError("driver error\nmore")

    on_a_pretended_gpu(monkeypatch, good)
    monkeypatch.setattr(quickest, "fastest", failing)
    config, runtime, state, batches = fresh()
    lines = []
    take_quickest(state, batches, config, 0, runtime, lines.append)
    assert lines == ["measuring the fastest way to train does not work here (driver error); going on without it"]
    assert (state.way.launch, state.way.kept()) == (ASKED, {})


def test_what_is_asked_for_is_not_measured_and_short_runs_measure_nothing(monkeypatch):
    on_a_pretended_gpu(monkeypatch, good)
    config, runtime, state, batches = fresh("runtime.compile=false")
    take_quickest(state, batches, config, 0, runtime, print)
    assert (state.way.launch, state.way.loss) == (ASKED, state.way.plain)
    monkeypatch.setattr(quickest, "_SECONDS_TO_WIN_BACK", 1e9)
    config, runtime, state, batches = fresh()
    take_quickest(state, batches, config, 0, runtime, print)
    assert state.way.launch == EAGER
    monkeypatch.setattr(quickest, "_STEPS_TO_WIN_BACK", 1001)
    config, runtime, state, batches = fresh()
    take_quickest(state, batches, config, 0, runtime, print)
    assert state.way.kept() == {}


@pytest.mark.parametrize("launch", [COMPILED, GRAPHS])
def test_gradients_of_micro_batches_add_up_though_a_replay_writes_over_the_last(launch):
    _, _, state, batches = fresh()
    memory = []
    compute = replayed(state.way.plain, memory)
    for inputs, targets in batches.at(0):
        state.way.plain(inputs, targets).backward()
    expected = [p.grad.clone() for p in state.parameters]
    state.optimizer.zero_grad()
    state.way.use(TORCH, launch, "here", compute)
    for inputs, targets in batches.at(0):
        state.way.backward(state.loss(inputs, targets), state.parameters)
    same = all(torch.allclose(p.grad, e, atol=1e-6) for p, e in zip(state.parameters, expected, strict=True))
    assert same is (launch == GRAPHS)  # without the copy it does go wrong: this test can fail
    shared = {t.data_ptr() for t in memory} & {p.grad.data_ptr() for p in state.parameters}
    assert bool(shared) is (launch == COMPILED)


def test_a_way_that_fails_later_is_given_up_and_the_run_is_the_plain_one(monkeypatch, tmp_path, capsys):
    plain = run(make_config(tmp_path, *TORCH_ENGINE, name="plain"))
    calls = []

    def failing_later(loss, launch):
        def compute(inputs, targets):
            calls.append(launch)
            if len(calls) == 40:
                raise RuntimeError("CUDA graphs are out of order")
            return loss(inputs, targets)

        return loss if launch == EAGER else compute

    on_a_pretended_gpu(monkeypatch, failing_later)
    preferring_graphs(monkeypatch)
    capsys.readouterr()
    summary = run(make_config(tmp_path, *TORCH_ENGINE, name="failing"))
    assert len(calls) == 40
    assert capsys.readouterr().out.count("the graphs step does not work any more (CUDA graphs are out of order)") == 1
    assert timeless(summary.run_dir) == timeless(plain.run_dir)
    assert weights(summary) == weights(plain)


def test_a_resumed_run_takes_the_choice_it_began_with_and_measures_nothing(monkeypatch, tmp_path, capsys):
    on_a_pretended_gpu(monkeypatch, good)
    preferring_graphs(monkeypatch)
    interrupt_at(monkeypatch, 4)
    config = make_config(tmp_path, *TORCH_ENGINE)
    run(config)
    kept = json.loads((list_checkpoints(Path(config.run_dir))[0] / "state.json").read_text())["way"]
    assert kept.keys() == {"attention", "launch", "update", "device"}
    assert (kept["launch"], kept["device"]) == (GRAPHS, "cpu")

    def never(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(quickest, "_measure", never)
    capsys.readouterr()
    second = run(config)
    assert "steps graphs: as measured when this run began" in capsys.readouterr().out
    state = json.loads((list_checkpoints(Path(second.run_dir))[0] / "state.json").read_text())
    assert state["way"] == kept


@pytest.mark.parametrize(
    "saved",
    [
        None,
        "graphs",
        {"attention": "flash", "launch": GRAPHS, "device": "another GPU"},
        {"attention": "quantum", "launch": GRAPHS, "device": "cpu"},
        {"attention": "flash", "launch": ["graphs"], "device": "cpu"},
        {"attention": "flash", "launch": GRAPHS, "update": "guessed", "device": "cpu"},
        {"device": "cpu"},
    ],
)
def test_a_choice_of_another_machine_or_of_nonsense_is_not_taken(saved):
    state = fresh()[2]
    state.way.saved = saved
    assert not state.way.restore("cpu")
    assert state.way.kept() == {}


def test_what_is_asked_for_on_resuming_is_done(monkeypatch):
    on_a_pretended_gpu(monkeypatch, good)
    config, runtime, state, batches = fresh("runtime.compile=false")
    state.way.saved = {"attention": "flash", "launch": GRAPHS, "device": "cpu"}
    take_quickest(state, batches, config, 5, runtime, print)
    assert (state.way.attention, state.way.launch, state.way.loss) == ("flash", ASKED, state.way.plain)


def test_on_a_cpu_a_checkpoint_says_nothing_of_a_way(tmp_path):
    config = make_config(
        tmp_path, "runtime.measure=true", "runtime.deterministic=false", *TORCH_ENGINE, "train.steps=2"
    )
    run(config)
    assert "way" not in json.loads((list_checkpoints(Path(config.run_dir))[0] / "state.json").read_text())


@pytest.mark.parametrize("kernel", [TORCH, *KERNELS])
@pytest.mark.parametrize("window", [None, 7])
def test_attention_is_the_same_whichever_kernel_is_preferred_and_the_switches_are_put_back(kernel, window):
    q, k, v = (torch.randn(1, 2, 200, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    switches = torch._C._get_sdp_priority_order(), torch.backends.cuda.flash_sdp_enabled()
    with preferring(kernel):
        y = causal_attention(q, k, v, window=window)
    torch.testing.assert_close(y, reference_attention(q, k, v, window=window), rtol=1e-4, atol=1e-5)
    assert (torch._C._get_sdp_priority_order(), torch.backends.cuda.flash_sdp_enabled()) == switches


def test_the_attention_that_is_measured_has_the_shapes_of_the_model_and_a_gradient_to_compare():
    config = parse_config("", "t", [*TINY, "model.n_kv_head=1"])
    y, *found = attention_candidates(config.model, 3, Runtime(CPU, "bf16", 1))[TORCH]()
    assert y.shape == (3, 2, 16, 8)
    assert [g.shape for g in found] == [(3, 2, 16, 8), (3, 1, 16, 8), (3, 1, 16, 8)]
    assert all(g.dtype == torch.bfloat16 and g.any() for g in found)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("optim.name=adamw",),
        ("optim.ema=0.9", "train.micro_batch_size=2"),
        ("train.activation_checkpointing=true",),
    ],
)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_asks_its_device_for_no_number(overrides, scaled):
    """A tensor on the meta device has none: whatever would wait for a GPU, such as `.item()` or `if`, raises."""
    config = parse_config("", "t", [*TINY, *overrides])
    runtime = Runtime(torch.device("meta"), "fp32", 1)
    state = replace(TrainingState.fresh(config, 11, runtime, print), loss_scale=LossScale(scaled, runtime.device))
    batches = Batches.of(config, torch.zeros(500, dtype=torch.int32, device="meta"))
    loss, norms = train_step(state, batches.at(0), config, 0, 1.0, runtime)
    assert (loss.shape, norms.shape) == ((), (len(state.parameters),))
    with pytest.raises(RuntimeError, match="meta"):
        loss.item()


def test_gradients_are_those_of_autograd():
    _, _, state, batches = fresh()
    inputs, targets = batches.at(0)[0]
    found = gradients(state.loss(inputs, targets), state.parameters, GRAPHS)
    state.loss(inputs, targets).backward()
    assert all(g.equal(p.grad) for g, p in zip(found, state.parameters, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # a compiler may have something to say about a machine
@pytest.mark.parametrize("launch", [COMPILED, GRAPHS])
def test_what_the_compiler_makes_agrees_with_the_plain_step_and_trains_the_same(monkeypatch, tmp_path, launch):
    """On a CPU nothing is replayed, but all else is what a GPU run goes through."""
    plain = run(make_config(tmp_path, *TORCH_ENGINE, "runtime.precision=fp32", name="plain"))
    on_a_pretended_gpu(monkeypatch, way.launched)
    monkeypatch.setattr(quickest, "COMPILER", COMPILER)
    preferring_graphs(monkeypatch, launch)
    real, found = quickest.fastest, []

    def seen(candidates, wait, tolerance):
        found.append(real(candidates, wait, tolerance))
        return found[-1]

    monkeypatch.setattr(quickest, "fastest", seen)
    fast = run(make_config(tmp_path, *TORCH_ENGINE, "runtime.precision=fp32", name="fast"))
    assert [set(f.seconds) for f in found[1:]] == [{EAGER, COMPILED, GRAPHS}, {EAGER, COMPILED}]
    assert [f.dropped for f in found[1:]] == [{}, {}]
    assert fast.val_loss == pytest.approx(plain.val_loss, rel=1e-3)
