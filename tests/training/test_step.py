"""How a step is computed by torch: eager, compiled, on a device that is never waited for."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

from gpt_cli.config import parse_config
from gpt_cli.errors import UserError
from gpt_cli.model import chunked_loss, lm_head
from gpt_cli.run.checkpoint import list_checkpoints
from gpt_cli.runtime.compilation import compile_mode, estimate_eager_seconds
from gpt_cli.runtime.device import Runtime
from gpt_cli.training import muon, torch_engine
from gpt_cli.training import state as state_module
from gpt_cli.training.batches import Batches
from gpt_cli.training.device_tokens import DeviceTokens
from gpt_cli.training.evaluate import IGNORED
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step
from gpt_cli.training.torch_engine import TorchEngine
from tests.support.tiny_run import make_config, run, timeless, weights

CPU = torch.device("cpu")
TINY = ("model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context_length=16", "train.batch_size=4")
BY_TORCH = ("runtime.engine=torch", "runtime.precision=fp32", "runtime.compile=true")


def compiling_with(monkeypatch: pytest.MonkeyPatch, backend: object) -> None:
    """Runs compile with `backend` in place of Inductor, which takes minutes."""
    torch.compiler.reset()
    monkeypatch.setattr(state_module, "TorchEngine", partial(TorchEngine, backend=backend))


def refuse(*_: object) -> None:
    raise AttributeError("no compiler today\nand more")


@pytest.mark.system
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("overrides", [(), ("optim.ema=0.9", "train.micro_batch_size=2", "model.dropout=0.1")])
def test_a_run_compiles_two_graphs_without_a_break_and_a_resume_no_more(tmp_path, monkeypatch, overrides):
    compiling_with(monkeypatch, "aot_eager")
    counters.clear()
    config = make_config(tmp_path, *BY_TORCH, *overrides, "eval.batch_size=3")
    summary = run(config)
    assert counters["stats"]["unique_graphs"] == 2  # training; evaluation, with all but its last windows
    assert not counters["graph_break"]
    eager = run(
        make_config(tmp_path, *BY_TORCH, *overrides, "runtime.compile=false", "eval.batch_size=3", name="eager")
    )
    assert summary.val_loss == pytest.approx(eager.val_loss, rel=1e-4)
    counters.clear()
    torch.compiler.reset()
    run(make_config(tmp_path, *BY_TORCH, *overrides, "eval.batch_size=3", "train.steps=14"))
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.system
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(refuse, id="forward"),
        pytest.param(aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=refuse), id="backward"),
    ],
)
def test_a_compile_that_fails_is_told_once_and_the_run_is_the_eager_one(tmp_path, monkeypatch, capsys, backend):
    overrides = ("model.dropout=0.1", "train.micro_batch_size=2")
    eager = run(make_config(tmp_path, *BY_TORCH, *overrides, "runtime.compile=false", name="eager"))
    compiling_with(monkeypatch, backend)
    capsys.readouterr()
    summary = run(make_config(tmp_path, *BY_TORCH, *overrides))
    assert capsys.readouterr().out.count("torch.compile does not work here") == 1
    assert weights(summary) == weights(eager)
    assert timeless(summary.run_dir) == timeless(eager.run_dir)


@pytest.mark.system
@pytest.mark.filterwarnings("default")
def test_a_compiler_that_a_signal_ended_is_started_again_and_the_run_is_the_compiled_one(tmp_path, monkeypatch, capsys):
    compiled = TorchEngine._forward_backward
    begun = []

    def interrupted(self, *args, **kwargs):
        if self.loss is not self.eager and not begun:
            begun.append(1)
            raise AttributeError("its compiler was ended")
        assert self.loss is not self.eager
        return compiled(self, *args, **kwargs)

    compiling_with(monkeypatch, "aot_eager")
    expected = run(make_config(tmp_path, *BY_TORCH, name="expected"))
    monkeypatch.setattr(TorchEngine, "_forward_backward", interrupted)
    compiling_with(monkeypatch, "aot_eager")
    actual = run(make_config(tmp_path, *BY_TORCH))
    assert begun
    assert "does not work here" not in capsys.readouterr().out
    assert weights(actual) == weights(expected)


def engines(compile_mode: str | None, dropout: float = 0.0) -> tuple[TrainingState, Callable[[], list[torch.Tensor]]]:
    """A state, and the gradients that its engine computes of two micro-batches."""
    config = parse_config("", "t", [*TINY, f"model.dropout={dropout}", "runtime.engine=torch"])
    runtime = Runtime(CPU, "fp32", 1)
    state = TrainingState.initialize(config, 11, runtime, print)
    engine = TorchEngine(state.model, runtime, state.grad_scaler, print, compile_mode, backend="aot_eager")
    inputs = torch.randint(11, (2, 4, 16), generator=torch.Generator().manual_seed(0))

    def gradients() -> list[torch.Tensor]:
        actual = []
        for micro_step in range(2):
            engine.forward_backward(inputs[micro_step], inputs[1 - micro_step], 2, seed=micro_step)
            actual += [p.grad.clone() for p in state.parameters]
            state.optimizer.zero_grad()
        return actual

    return state, gradients


@pytest.mark.system
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_gradients_of_several_micro_batches_are_the_eager_ones(mode):
    torch.compiler.reset()
    (_, compiled), (_, eager) = engines(mode), engines(None)
    for actual, expected in zip(compiled(), eager(), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("optim.name=adamw",),
        ("optim.ema=0.9", "train.micro_batch_size=2"),
        ("train.activation_checkpointing=true",),
        ("train.init_from=other", "lora.rank=2"),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_asks_its_device_for_no_number(overrides, precision):
    """A tensor on the meta device has none: whatever would wait for a GPU, such as `.item()` or `if`, raises."""
    config = parse_config("", "t", [*TINY, *overrides])
    runtime = Runtime(torch.device("meta"), "fp32", 1)
    state = TrainingState.initialize(config, 11, runtime, print)
    state.grad_scaler.enabled = precision == "fp16"
    batches = Batches.of(config, DeviceTokens(np.zeros(500, dtype=np.uint16), runtime.device))
    loss, norms = train_step(state, batches.at(0), config, 0, 1.0, runtime)
    trained = [p for p in state.parameters if p.requires_grad]
    assert (loss.shape, norms.shape) == ((), (len(trained),))
    with pytest.raises(RuntimeError, match="meta"):
        loss.item()


@pytest.mark.parametrize("max_chunk_logits", [2**27, 100])  # the whole, or 9 tokens at a time
@pytest.mark.parametrize("padded", [False, True])
def test_losses_whole_or_in_pieces_ask_their_device_for_no_number(monkeypatch, max_chunk_logits, padded):
    """Those of training and of evaluation, whose sums are asked for once, at its end."""
    monkeypatch.setattr(chunked_loss, "MAX_LOGITS", max_chunk_logits)
    monkeypatch.setattr(lm_head, "is_padded", lambda _: padded)
    config = parse_config("", "t", [*TINY, "runtime.engine=torch", "model.window=5", "model.logit_softcap=9"])
    runtime = Runtime(torch.device("meta"), "fp32", 1)
    engine = TrainingState.initialize(config, 11, runtime, print).engine
    tokens = torch.zeros(40, 16, dtype=torch.int64, device="meta")
    losses = [engine.forward_backward(tokens, tokens, 2, seed=0)]
    with torch.no_grad():
        losses += [engine.summed_loss(batch, batch) for batch in (tokens, tokens[:1, :3])]
    assert [loss.device.type for loss in losses] == ["meta"] * 3


def test_memory_that_is_too_small_for_the_update_ends_the_run_and_updates_nothing_twice(tmp_path, monkeypatch):
    calls: list[int] = []

    def exhausted(*_: object, **__: object) -> None:
        calls.append(1)
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(muon, "newton_schulz", exhausted)
    with pytest.raises(UserError, match="out of memory while updating the weights"):
        run(make_config(tmp_path, "runtime.engine=torch"))
    assert len(calls) == 1


def test_running_out_of_memory_is_not_taken_for_a_compile_that_fails(tmp_path, monkeypatch, capsys):
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch_engine, "chunked_loss", exhausted)
    monkeypatch.setattr(torch_engine, "needs_chunking", lambda *_: True)
    with pytest.raises(UserError, match="not even a single sequence fits"):
        run(make_config(tmp_path, "runtime.engine=torch", "eval.every=null", "sample.every=null"))
    assert "torch.compile" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "device", "seconds", "mode"),
    [
        (False, "cuda", math.inf, None),
        (True, "cpu", 0.0, "default"),
        ("reduce-overhead", "cuda", 0.0, "reduce-overhead"),
        ("auto", "cpu", math.inf, None),
        ("auto", "cuda", 30.0, None),  # a few thousand steps of a small model
        ("auto", "cuda", 85.0, "reduce-overhead"),  # five thousand steps of a 10M model
        ("auto", "cuda", 30_000.0, "reduce-overhead"),  # GPT-2 124M on ten billion tokens
    ],
)
def test_auto_compiles_on_a_gpu_where_it_saves_more_than_it_costs(setting, device, seconds, mode):
    assert compile_mode(setting, torch.device(device), seconds) == mode


def test_eager_steps_on_a_cpu_are_not_estimated():
    assert estimate_eager_seconds(CPU, 12, 1e20, 1000) == 0.0


def test_a_run_of_version_0_1_whose_config_names_the_removed_key_is_resumed(tmp_path):
    config = make_config(tmp_path)
    run(config)
    file = Path(config.run_dir, "config.yaml")
    file.write_text(file.read_text().replace("runtime:\n", "runtime:\n  measure: auto\n"))
    assert run(make_config(tmp_path, "train.steps=14")).steps == 14
    assert len(list_checkpoints(Path(config.run_dir))) > 1


@pytest.mark.parametrize("max_chunk_logits", [2**27, 100])  # the whole, or 9 tokens at a time
def test_targets_that_do_not_count_are_as_if_their_tokens_had_no_loss(monkeypatch, max_chunk_logits):
    monkeypatch.setattr(chunked_loss, "MAX_CPU_LOGITS", max_chunk_logits)
    state, _ = engines(None)
    engine, parameters = state.engine, state.parameters
    inputs, targets = torch.randint(11, (2, 4, 16), generator=torch.Generator().manual_seed(0))
    targets[:, :5], targets[1, 9:] = IGNORED, IGNORED
    counts = targets != IGNORED
    actual = engine.forward_backward(inputs, targets, counts.sum(), 0)
    gradients = [p.grad.clone() for p in parameters]
    state.optimizer.zero_grad()
    expected = -state.model(inputs).log_softmax(-1)[counts].gather(1, targets[counts][:, None]).mean()
    torch.testing.assert_close(actual, expected.detach())
    for gradient, expected_gradient in zip(gradients, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(gradient, expected_gradient)
