"""`gpt bench` measures what it says: whole steps, their parts, and a ceiling that is the machine's own."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpt_cli.bench import measure, peak_flops, profile
from gpt_cli.bench.measure import bench, render_bench
from gpt_cli.bench.peak_flops import peak_matmul_flops
from gpt_cli.bench.profile import FUSED_PARTS, PARTS, profile_step
from gpt_cli.cli.main import main
from gpt_cli.config import parse_config
from gpt_cli.model.sizing import flops_per_token
from gpt_cli.runtime.device import Runtime, setup_runtime
from gpt_cli.search import timing
from gpt_cli.training.state import TrainingState

TINY = """
tokenizer: {kind: bpe, vocab_size: 300}
model: {n_layer: 2, n_head: 2, n_embd: 16, context_length: 16}
train: {batch_size: 4}
runtime: {device: cpu, threads: 1}
"""
CPU = Runtime(torch.device("cpu"), "fp32", threads=1)


class OperationClock(TorchDispatchMode):
    """In place of the time: what torch was asked for takes `seconds(operation, arguments)` each, by default 1."""

    def __init__(self, monkeypatch, seconds=lambda *_: 1):
        super().__init__()
        self.now, self._seconds = 0, seconds
        for module in (peak_flops, timing, profile):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def pass_(self, seconds):
        self.now += seconds

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.now += self._seconds(operation, arguments)
        return operation(*arguments, **(options or {}))


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_the_figures_follow_from_each_other(engine):
    config = parse_config(TINY, "tiny.yaml", [f"runtime.engine={engine}"])
    figures = bench(config, print, seconds=0.1)
    low, median, high = figures.step_seconds
    assert 0 < low <= median <= high
    assert figures.tokens_per_step == 64
    assert figures.tokens_per_second == pytest.approx(64 / median)
    assert figures.flops_per_token == flops_per_token(config.model, 300)
    assert figures.utilisation == pytest.approx(figures.flops_per_second / figures.matmul_ceiling)
    assert figures.utilisation > 0
    assert figures.peak_memory_bytes > 50e6  # Python and torch alone are more
    assert figures.engine == "torch, eager" if engine == "torch" else figures.engine in ("C", "torch, eager")
    assert tuple(figures.seconds_by_part) == (FUSED_PARTS if figures.engine == "C" else PARTS)
    for word in ("tokens/s", "MFU", "of that peak", figures.engine, "backward", "optimizer"):
        assert word in render_bench(figures)


def test_steps_are_counted_whole_and_a_device_is_waited_for_at_the_ends_of_spans_alone(monkeypatch):
    config = parse_config(TINY, "tiny.yaml", ["train.micro_batch_size=2", "runtime.engine=torch"])
    batch_sizes, waited = [], []
    with OperationClock(monkeypatch, lambda *_: 0) as clock:

        def train_step(state, micro_batches, *_):
            batch_sizes.append(len(micro_batches))
            clock.pass_(0.5 if len(batch_sizes) == 1 else 1 / 128)

        monkeypatch.setattr(timing, "train_step", train_step)
        monkeypatch.setattr(timing, "synchronize", lambda _: waited.append(len(batch_sizes)))
        monkeypatch.setattr(measure, "profile_step", lambda *_: {"batch": 1.0})
        monkeypatch.setattr(measure, "peak_matmul_flops", lambda *_: 1e9)
        figures = bench(config, print, seconds=1.0)
    assert set(batch_sizes) == {2}
    assert figures.steps == len(batch_sizes) - 3 == 120
    assert figures.first_step_seconds == 0.5
    assert figures.tokens_per_second == 64 * 128
    assert sorted(set(waited)) == [0, 1, 3, *range(15, 124, 12)]


def test_what_is_shown_is_of_the_engine_that_was_timed():
    """A step that is one call, compiled or in C, is not shown as the parts of another."""
    config = parse_config(TINY, "tiny.yaml", ["runtime.engine=torch"])
    runtime = setup_runtime(config.runtime)
    state = TrainingState.initialize(config, 300, runtime, print)
    calls = []

    class Other:
        def forward_backward(self, *arguments):
            calls.append(arguments)
            return eager.forward_backward(*arguments)

    eager, state = state.engine, replace(state, engine=Other())
    parts = profile_step(config, state, measure.random_batches(config, 300, runtime), runtime, 2)
    assert len(calls) == 2
    assert tuple(parts) == FUSED_PARTS


def test_the_ceiling_is_of_as_many_threads_as_a_step_takes_and_leaves_them_as_they_were(monkeypatch):
    monkeypatch.setattr(peak_flops, "MATRIX_SIZES", {"cpu": (8,)})
    threads = set()
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the C engine leaves torch
    try:
        with OperationClock(monkeypatch, lambda *_: threads.add(torch.get_num_threads()) or 1):
            peak_matmul_flops(Runtime(torch.device("cpu"), "fp32", threads=2), seconds=1.0)
        assert threads == {2}
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model.norm_position=post", "model.norm=layernorm", "model.mlp=gelu", "optim.name=adamw"),
        ("train.activation_checkpointing=true", "model.tie_embeddings=true", "model.logit_softcap=15"),
        ("train.micro_batch_size=2", "optim.ema=0.9", "optim.grad_clip=null"),
    ],
)
def test_the_parts_of_a_step_add_up_to_it(overrides, monkeypatch):
    config = parse_config(TINY, "tiny.yaml", [*overrides, "runtime.engine=torch"])
    runtime = setup_runtime(config.runtime)
    state = TrainingState.initialize(config, 300, runtime, print)
    batches = measure.random_batches(config, 300, runtime)
    with OperationClock(monkeypatch) as clock:
        parts = profile_step(config, state, batches, runtime, 2)
    assert 2 * sum(parts.values()) == clock.now > 100
    assert all(seconds >= 0 for seconds in parts.values())
    assert parts["attention"] > 0
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in state.model.modules()]
    assert sum(hooks) == 0  # none is left behind


def test_the_slow_part_is_the_one_that_shows(monkeypatch):
    config = parse_config(TINY, "tiny.yaml", ["runtime.engine=torch"])
    runtime = setup_runtime(config.runtime)
    state = TrainingState.initialize(config, 300, runtime, print)
    forward = state.model.blocks[1].mlp.forward
    batches = measure.random_batches(config, 300, runtime)
    with OperationClock(monkeypatch) as clock:
        monkeypatch.setattr(state.model.blocks[1].mlp, "forward", lambda x: clock.pass_(10_000) or forward(x))
        parts = profile_step(config, state, batches, runtime, 2)
    assert max(parts, key=parts.__getitem__) == "mlp"
    assert parts["mlp"] >= 10_000
    assert sum(parts.values()) - parts["mlp"] < 10_000


def test_the_ceiling_is_the_rate_of_the_fastest_product_of_the_best_size(monkeypatch):
    rates = {8: 1e9, 16: 3e9, 32: 2e9}
    monkeypatch.setattr(peak_flops, "MATRIX_SIZES", {"cpu": tuple(rates)})
    sizes = []

    def seconds(operation, arguments):
        if operation is not torch.ops.aten.mm.default:
            return 0.0
        (size, _) = arguments[0].shape
        sizes.append(size)
        return 2 * size**3 / rates[size] * (1.5 if sizes.count(size) < 7 else 1.0)  # the first are slower

    with OperationClock(monkeypatch, seconds):
        best = peak_matmul_flops(CPU, seconds=1e-3)
    assert best == pytest.approx(3e9)
    assert set(sizes) == set(rates)


def test_it_speaks_json_and_needs_no_text_where_the_vocabulary_is_known(tmp_path, capsys):
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY + "data: {source: nowhere.txt}\n")
    assert main(["bench", str(file), "--seconds", "0.1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["vocab_size"] == 300
    assert set(figures["seconds_by_part"]) <= {*PARTS, *FUSED_PARTS}
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nothing.yaml"], "there is no config file nothing.yaml"),
        (["a.yaml", "b.yaml"], "give one config, not 2"),
        (["model.n_head=3"], "model.n_embd (128) must be a multiple of model.n_head (3)"),
        (["--seconds", "0"], "'--seconds'"),
        (["runtime.device=mps"], "no mps device"),
    ],
)
def test_a_wrong_request_is_one_error(arguments, error, capsys):
    assert main(["bench", *arguments]) == 2
    assert error in capsys.readouterr().err
