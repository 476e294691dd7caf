"""`gpt bench` measures what it says: whole steps, their parts, and a ceiling that is the machine's own."""

import json
import time

import pytest
import torch

from gpt_cli.bench import measure
from gpt_cli.bench.ceiling import matmul_ceiling
from gpt_cli.bench.measure import bench, render_bench
from gpt_cli.bench.profile import PARTS, profile_step
from gpt_cli.cli.main import main
from gpt_cli.config import parse_config
from gpt_cli.model.count import flops_per_token
from gpt_cli.runtime.device import Runtime, open_runtime
from gpt_cli.training.state import TrainingState

TINY = """
tokenizer: {kind: bpe, vocab_size: 300}
model: {n_layer: 2, n_head: 2, n_embd: 16, context_length: 16}
train: {batch_size: 4}
runtime: {device: cpu, threads: 1}
"""
CPU = Runtime(torch.device("cpu"), "fp32", threads=1)


def test_the_figures_follow_from_each_other():
    config = parse_config(TINY, "tiny.yaml")
    figures = bench(config, print, seconds=0.3)
    low, median, high = figures.step_seconds
    assert 0 < low <= median <= high
    assert figures.tokens_per_step == 64
    assert figures.tokens_per_second == pytest.approx(64 / median)
    assert figures.flops_per_token == flops_per_token(config.model, 300)
    assert figures.utilisation == pytest.approx(figures.flops_per_second / figures.matmul_ceiling)
    assert 0 < figures.utilisation < 1
    assert figures.peak_memory_bytes > 50e6  # Python and torch alone are more
    assert tuple(figures.seconds_by_part) == PARTS
    for word in ("tokens/s", "of the ceiling", "attention", "backward", "optimizer"):
        assert word in render_bench(figures)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model.norm_position=post", "model.norm=layernorm", "model.mlp=gelu", "optim.name=adamw"),
        ("train.activation_checkpointing=true", "model.tie_embeddings=true", "model.logit_softcap=15"),
        ("train.micro_batch_size=2", "optim.ema=0.9", "optim.grad_clip=null"),
    ],
)
def test_the_parts_of_a_step_add_up_to_it(overrides):
    config = parse_config(TINY, "tiny.yaml", overrides)
    runtime = open_runtime(config.runtime)
    state = TrainingState.fresh(config, 300, runtime, print)
    batches = measure._random_batches(config, 300, runtime)
    profile_step(config, state, batches, runtime, 1)  # what the first step alone does
    started = time.perf_counter()
    parts = profile_step(config, state, batches, runtime, 10)
    whole = (time.perf_counter() - started) / 10
    assert all(seconds >= 0 for seconds in parts.values())
    assert parts["attention"] > 0
    assert 0.6 * whole < sum(parts.values()) <= 1.001 * whole
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in state.model.modules()]
    assert sum(hooks) == 0  # none is left behind


def test_the_slow_part_is_the_one_that_shows(monkeypatch):
    config = parse_config(TINY, "tiny.yaml")
    runtime = open_runtime(config.runtime)
    state = TrainingState.fresh(config, 300, runtime, print)
    forward = state.model.blocks[1].mlp.forward
    monkeypatch.setattr(state.model.blocks[1].mlp, "forward", lambda x: time.sleep(0.05) or forward(x))
    parts = profile_step(config, state, measure._random_batches(config, 300, runtime), runtime, 2)
    assert max(parts, key=parts.__getitem__) == "mlp"
    assert parts["mlp"] > 0.05


def test_no_product_measured_here_is_faster_than_the_ceiling():
    ceiling = matmul_ceiling(CPU, seconds=0.6)
    a = torch.randn(512, 512)
    started = time.perf_counter()
    for _ in range(4):
        a @ a
    assert 4 * 2 * 512**3 / (time.perf_counter() - started) < 2 * ceiling


def test_it_speaks_json_and_needs_no_text_where_the_vocabulary_is_known(tmp_path, capsys):
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY + "data: {source: nowhere.txt}\n")
    assert main(["bench", str(file), "--seconds", "0.1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["vocab_size"] == 300
    assert set(figures["seconds_by_part"]) == set(PARTS)
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
