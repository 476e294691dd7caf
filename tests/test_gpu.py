"""On a CUDA device: every precision trains, repeats and resumes, fast paths are the reference, memory runs out well."""

import signal

import pytest
import torch
from test_health import HARMS, at_step
from test_training import interrupt_at, make_config, run, samples, timeless, weights

from gpt_cli.errors import UserError
from gpt_cli.model.attention import causal_attention, matmul_attention, reference_attention, sdpa_attention
from gpt_cli.run.checkpoint import list_checkpoints, load
from gpt_cli.run.load import load_model
from gpt_cli.run.log import read_events
from gpt_cli.selftest.model import check_cache, check_causality

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # a compiler may have something to say about a device
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
PRECISIONS = ["fp32", "bf16", "fp16"]


def cuda_config(tmp_path, *overrides, name="run"):
    return make_config(tmp_path, "runtime.device=cuda", "runtime.compile=false", *overrides, name=name)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_learns_the_text(tmp_path, precision):
    size = ("train.steps=60", "train.batch_size=16", "eval.every=60")
    assert run(cuda_config(tmp_path, f"runtime.precision={precision}", *size)).val_loss < 1.5


def test_it_learns_what_a_cpu_learns(tmp_path):
    there = run(cuda_config(tmp_path, "runtime.precision=fp32", name="there"))
    here = run(make_config(tmp_path, "runtime.precision=fp32", name="here"))
    assert there.val_loss == pytest.approx(here.val_loss, rel=1e-3)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_same_config_gives_the_same_weights(tmp_path, precision):
    one, two = (run(cuda_config(tmp_path, f"runtime.precision={precision}", name=name)) for name in ("one", "two"))
    assert weights(one) == weights(two)
    assert timeless(one.run_dir) == timeless(two.run_dir)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stop_at", [1, 5, 8])
def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path, monkeypatch, precision, stop_at):
    changes = (f"runtime.precision={precision}", "model.dropout=0.2", "train.micro_batch_size=2", "optim.ema=0.9")
    whole = run(cuda_config(tmp_path, *changes, name="whole"))
    interrupt_at(monkeypatch, stop_at - 1, signal.SIGTERM)
    config = cuda_config(tmp_path, *changes, name="stopped")
    assert run(config).steps == stop_at
    second = run(config)
    assert weights(second) == weights(whole)
    assert timeless(second.run_dir) == timeless(whole.run_dir)
    assert samples(second.run_dir) == samples(whole.run_dir)


def test_the_scale_of_an_fp16_loss_is_in_the_checkpoint(tmp_path):
    run(cuda_config(tmp_path, "runtime.precision=fp16"))
    state = load(list_checkpoints(tmp_path / "run")[0]).state
    assert state["loss_scale"] >= 1.0
    assert 0 <= state["loss_scale_good_updates"] <= 12


@pytest.mark.parametrize("backend", [matmul_attention, sdpa_attention, causal_attention])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 3e-2), (torch.float16, 5e-3)])
@pytest.mark.parametrize(("n_query", "n_key"), [(64, 64), (3, 64), (1, 64), (300, 300)])
@pytest.mark.parametrize("window", [None, 5])
def test_each_attention_backend_equals_the_reference(backend, dtype, tolerance, n_query, n_key, window):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, n_query, 32), (2, 2, n_key, 32), (2, 2, n_key, 32)]
    q, k, v = (torch.randn(shape, generator=generator).cuda() for shape in shapes)
    expected = reference_attention(q.double(), k.double(), v.double(), window=window).float()
    actual = backend(q.to(dtype), k.to(dtype), v.to(dtype), window=window).float()
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_a_model_on_the_device_sees_no_future_and_its_cache_changes_nothing(tmp_path):
    run(cuda_config(tmp_path))
    model = load_model(tmp_path / "run", torch.device("cuda"), print).model
    assert check_causality(model).passed
    assert check_cache(model).passed


def test_a_compiled_run_learns_what_an_eager_one_does(tmp_path, capsys):
    eager = run(cuda_config(tmp_path, "runtime.precision=fp32", name="eager"))
    fast = run(make_config(tmp_path, "runtime.device=cuda", "runtime.compile=true", "runtime.precision=fp32"))
    assert "going on without it" not in capsys.readouterr().out
    assert fast.val_loss == pytest.approx(eager.val_loss, rel=1e-3)


def test_what_is_not_finite_is_never_saved(tmp_path, monkeypatch):
    at_step(monkeypatch, 6, lambda state, _: HARMS["gradient"][0](state, float("nan")))
    with pytest.raises(UserError, match="not finite"):
        run(cuda_config(tmp_path, "runtime.precision=fp32"))
    newest = load(list_checkpoints(tmp_path / "run")[0])
    assert newest.step == 4
    assert all(tensor.isfinite().all() for tensor in newest.model_tensors.values())


def test_a_device_that_is_too_small_is_answered_by_smaller_micro_batches(tmp_path):
    size = ("model.n_embd=256", "model.n_layer=4", "model.context_length=64", "train.batch_size=512", "train.steps=2")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 500e6) / total)
    try:
        summary = run(cuda_config(tmp_path, *size, "runtime.precision=fp32"))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert summary.steps == 2
    tried = [event for event in read_events(tmp_path / "run") if event["event"] == "out of memory"]
    assert tried[0]["micro_batch_size"] == 512
    assert tried[-1]["smaller"] < 512
