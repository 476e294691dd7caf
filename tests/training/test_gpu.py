"""On a CUDA device: every precision trains, repeats and resumes, fast paths are the reference, memory runs out well.

What compiles comes last: it takes longest.
"""

import signal
import sys
from itertools import takewhile

import numpy as np
import pytest
import torch

from gpt_cli.config import ModelConfig, parse_config
from gpt_cli.errors import UserError
from gpt_cli.model import chunked_loss
from gpt_cli.model.attention import causal_attention, reference_attention, takes_flex
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import list_checkpoints, load
from gpt_cli.run.load_model import load_model
from gpt_cli.run.log import read_events
from gpt_cli.runtime.async_copy import AsyncHostCopy
from gpt_cli.runtime.cuda_graph import capture_graph
from gpt_cli.runtime.device import set_deterministic, setup_runtime
from gpt_cli.sampling import SamplingParams
from gpt_cli.sampling.filters import GumbelNoise
from gpt_cli.sampling.generate import SequenceBatch, generate
from gpt_cli.sampling.graphed_decode import GraphedDecoder, read_late
from gpt_cli.selftest.model import check_cache, check_causality
from gpt_cli.training.batches import Batches
from gpt_cli.training.device_tokens import DeviceTokens
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step
from gpt_cli.training.torch_engine import TorchEngine
from tests.support.tiny_run import interrupt_at, make_config, run, samples, timeless, weights
from tests.support.training_faults import HARMS, at_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # a compiler may have something to say about a device
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
PRECISIONS = ["fp32", "bf16", "fp16"]


@pytest.fixture(autouse=True)
def _default_settings():
    """What an earlier test has asked of the process is taken back: TF32, deterministic kernels, compiled functions."""
    torch.set_float32_matmul_precision("highest")
    set_deterministic(False)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def cuda_config(tmp_path, *overrides, name="run"):
    base = ("runtime.device=cuda", "runtime.compile=false", "runtime.deterministic=true")
    return make_config(tmp_path, *base, *overrides, name=name)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_learns_the_text(tmp_path, precision):
    size = ("train.steps=60", "train.batch_size=16", "eval.every=60")
    assert run(cuda_config(tmp_path, f"runtime.precision={precision}", *size)).val_loss < 1.5


def test_it_learns_what_a_cpu_learns(tmp_path):
    cuda_run = run(cuda_config(tmp_path, "runtime.precision=fp32", name="there"))
    cpu_run = run(make_config(tmp_path, "runtime.precision=fp32", name="here"))
    assert cuda_run.val_loss == pytest.approx(cpu_run.val_loss, rel=1e-3)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.05), ("fp16", 0.02)])
def test_gradients_are_those_of_a_cpu_in_fp32(precision, tolerance):
    inputs, targets = torch.randint(300, (2, 4, 64), generator=torch.Generator().manual_seed(0))
    overrides = ["model.zero_init=false", "model.n_embd=64", "model.context_length=64", "runtime.compile=false"]
    actual = []
    for device, device_precision in (("cpu", "fp32"), ("cuda", precision)):
        runtime = [f"runtime.device={device}", f"runtime.precision={device_precision}", "runtime.engine=torch"]
        config = parse_config("", "test.yaml", [*overrides, *runtime])
        state = TrainingState.initialize(config, 300, setup_runtime(config.runtime), print)
        loss = state.engine.forward_backward(inputs.to(device), targets.to(device), 1, 0)
        state.grad_scaler.unscale_(state.parameters)
        gradients = {name: p.grad.float().cpu() for name, p in state.model.named_parameters()}
        actual.append({"loss": loss.float().cpu(), **gradients})
    cpu_grads, cuda_grads = actual
    errors = {name: float((cuda_grads[name] - cpu_grads[name]).norm() / cpu_grads[name].norm()) for name in cpu_grads}
    assert max(errors.values()) < tolerance, errors


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_same_config_gives_the_same_weights(tmp_path, precision):
    first, second = (run(cuda_config(tmp_path, f"runtime.precision={precision}", name=name)) for name in ("one", "two"))
    assert weights(first) == weights(second)
    assert timeless(first.run_dir) == timeless(second.run_dir)


@pytest.mark.parametrize(("precision", "stop_at"), [("fp32", 5), ("bf16", 1), ("bf16", 5), ("bf16", 8), ("fp16", 5)])
def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path, monkeypatch, precision, stop_at):
    changes = (f"runtime.precision={precision}", "model.dropout=0.2", "train.micro_batch_size=2", "optim.ema=0.9")
    uninterrupted = run(cuda_config(tmp_path, *changes, name="whole"))
    interrupt_at(monkeypatch, stop_at - 1, signal.SIGTERM)
    config = cuda_config(tmp_path, *changes, name="stopped")
    assert run(config).steps == stop_at
    resumed = run(config)
    assert weights(resumed) == weights(uninterrupted)
    assert timeless(resumed.run_dir) == timeless(uninterrupted.run_dir)
    assert samples(resumed.run_dir) == samples(uninterrupted.run_dir)


def test_the_scale_of_an_fp16_loss_is_in_the_checkpoint(tmp_path):
    run(cuda_config(tmp_path, "runtime.precision=fp16"))
    state = load(list_checkpoints(tmp_path / "run")[0]).state
    assert state["loss_scale"] >= 1.0
    assert 0 <= state["loss_scale_good_updates"] <= 12


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 3e-2), (torch.float16, 5e-3)])
@pytest.mark.parametrize(("n_query", "n_key"), [(64, 64), (3, 64), (1, 64), (300, 300)])
@pytest.mark.parametrize("window", [None, 5])
def test_attention_equals_the_reference(dtype, tolerance, n_query, n_key, window):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, n_query, 32), (2, 2, n_key, 32), (2, 2, n_key, 32)]
    q, k, v = (torch.randn(shape, generator=generator).cuda() for shape in shapes)
    expected = reference_attention(q.double(), k.double(), v.double(), window=window).float()
    actual = causal_attention(q.to(dtype), k.to(dtype), v.to(dtype), window=window).float()
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("n_token", "window", "n_kv_head"), [(300, 50, 2), (512, 128, 4), (100, 7, 1)])
def test_a_compiled_window_equals_the_reference_and_so_do_its_gradients(n_token, window, n_kv_head):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, n_token, 32) for heads in (4, n_kv_head, n_kv_head)]
    fp64_inputs = [torch.randn(shape, generator=generator).cuda().double().requires_grad_() for shape in shapes]
    bf16_inputs = [t.detach().bfloat16().requires_grad_() for t in fp64_inputs]
    assert torch.compile(takes_flex, backend="eager")(bf16_inputs[0], bf16_inputs[1], 0.0) == (n_token >= 128)
    expected = reference_attention(*fp64_inputs, window=window)
    actual = torch.compile(causal_attention, fullgraph=True, dynamic=False)(*bf16_inputs, window=window)
    upstream = torch.linspace(-1, 1, expected.numel(), device="cuda").view_as(expected)
    gradients = torch.autograd.grad(actual, bf16_inputs, upstream.bfloat16())
    for a, e in [
        (actual, expected),
        *zip(gradients, torch.autograd.grad(expected, fp64_inputs, upstream.double()), strict=True),
    ]:
        assert (a - e).norm() <= 0.03 * e.norm()


def test_a_model_on_the_device_sees_no_future_and_its_cache_changes_nothing(tmp_path):
    run(cuda_config(tmp_path))
    model = load_model(tmp_path / "run", torch.device("cuda"), print).model
    assert check_causality(model).passed
    assert check_cache(model).passed


@pytest.mark.parametrize(
    "changes",
    [(), ("optim.name=adamw",), ("train.micro_batch_size=2", "optim.ema=0.9"), ("runtime.precision=fp16",)],
)
def test_no_step_waits_for_the_device(tmp_path, changes):
    config = cuda_config(tmp_path, *changes)
    runtime = setup_runtime(config.runtime)
    state = TrainingState.initialize(config, 11, runtime, print)
    batches = Batches.of(config, DeviceTokens(np.zeros(500, dtype=np.uint16), runtime.device))
    train_step(state, batches.at(0), config, 0, 1.0, runtime)
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss, norms = train_step(state, batches.at(1), config, 1, 1.0, runtime)
        host_copy = AsyncHostCopy(torch.stack([loss, torch.linalg.vector_norm(norms)]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert host_copy.read() == [loss.item(), torch.linalg.vector_norm(norms).item()]


DECODED_MODELS = {
    "default": {},
    "gpt-2": {"position": "learned", "norm": "layernorm", "mlp": "gelu", "qk_norm": False},
    "few keys": {"n_kv_head": 1, "window": 30, "logit_softcap": 5.0},
}


def decoding_model(options, dtype=torch.float32, vocab_size=300):
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 128, "context_length": 200}
    torch.manual_seed(0)
    config = ModelConfig(**shape, **options, zero_init=False, init_std=0.1)
    return GPT(config, vocab_size).cuda().to(dtype).eval()


def refuse(note):
    raise AssertionError(note)


ALL_FILTERS = {"top_k": 50, "top_p": 0.9, "min_p": 0.01}
UNEQUAL_PROMPTS = [[1], [2, 3, 4] * 20, [5] * 300]


@pytest.mark.parametrize(
    ("options", "prompts", "kind"),
    [
        *((options, UNEQUAL_PROMPTS, {}) for options in DECODED_MODELS),
        *(("default", prompts, ALL_FILTERS) for prompts in ([[1]], [[1, 2]] * 3, UNEQUAL_PROMPTS)),
        ("gpt-2", [[1, 2]] * 3, {"temperature": 0.0}),
    ],
)
def test_captured_steps_write_what_eager_ones_write_but_for_ties(options, prompts, kind):
    model, sampling = decoding_model(DECODED_MODELS[options]), SamplingParams(**kind, seed=1, max_new_tokens=300)
    expected = list(generate(model, prompts, sampling))
    actual = list(generate(model, prompts, sampling, decoder=GraphedDecoder(refuse)))
    # Once two tokens were as good as equal, texts go apart: whoever drew other noise, or saw another window, would at
    # once, within the context or when it is full (which is after 140 tokens of the longer prompts).
    common_lengths = [
        sum(1 for _ in takewhile(lambda p: p[0] == p[1], zip(*rows, strict=True)))
        for rows in zip(zip(*expected, strict=True), zip(*actual, strict=True), strict=True)
    ]
    assert sorted(common_lengths)[len(common_lengths) // 2] == 300, common_lengths


def test_no_captured_step_waits_for_the_device():
    model, sampling = decoding_model({}), SamplingParams(top_k=50, top_p=0.9, max_new_tokens=100)
    rows, noise = SequenceBatch(model, [[1], [2, 3]], 100), GumbelNoise(1, 2, 300, torch.device("cuda"))
    with torch.inference_mode():
        rows.append(rows.next_logits().argmax(dim=-1))
        decode = GraphedDecoder(refuse).begin(model, rows, sampling, [])

        def steps():
            for _ in range(8):
                assert rows.prefill_due() is None
                tensors = decode(noise.draw())
                rows.append(tensors[0])
                yield tensors

        list(steps())  # captured by then
        torch.cuda.set_sync_debug_mode("error")
        try:
            actual = list(steps())
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert list(read_late(actual)) == [[tokens.tolist()] for (tokens,) in actual]


def test_after_a_capture_that_failed_everything_else_goes_on():
    x = torch.ones(4, device="cuda")
    stream = torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        capture_graph(lambda t: [t * t.sum().item()], [x])
    assert torch.cuda.current_stream() == stream
    replay = capture_graph(lambda t: [t * 2], [x])
    assert replay(x + 1)[0].tolist() == [4.0] * 4


@pytest.mark.parametrize("resident", [True, False])
def test_batches_are_those_of_a_cpu_wherever_the_ids_are(resident):
    ids = np.arange(64_536, 65_536, dtype=np.uint16)
    cpu_batches = Batches(DeviceTokens(ids, torch.device("cpu")), 16, 12, 12, seed=7)
    cuda_batches = Batches(DeviceTokens(ids, torch.device("cuda"), resident=resident), 16, 12, 12, seed=7)
    for step in (0, 4, 5, 1000):
        for expected, actual in zip(cpu_batches.at(step)[0], cuda_batches.at(step)[0], strict=True):
            assert actual.cpu().equal(expected)


def test_what_is_not_finite_is_never_saved(tmp_path, monkeypatch):
    at_step(monkeypatch, 6, lambda state, _: HARMS["gradient"][0](state, float("nan")))
    with pytest.raises(UserError, match="not finite"):
        run(cuda_config(tmp_path, "runtime.precision=fp32"))
    checkpoint = load(list_checkpoints(tmp_path / "run")[0])
    assert checkpoint.step == 4
    assert all(tensor.isfinite().all() for tensor in checkpoint.model_tensors.values())


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
    oom_events = [event for event in read_events(tmp_path / "run") if event["event"] == "out of memory"]
    assert oom_events[0]["micro_batch_size"] == 512
    assert oom_events[-1]["smaller"] < 512


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_a_captured_step_chooses_what_one_pass_over_the_text_does(dtype, compiling):
    model, sampling = decoding_model({}, dtype), SamplingParams(temperature=0.0, max_new_tokens=60)
    decoder = GraphedDecoder(refuse, compiling=compiling)
    tokens = [token for (token,) in generate(model, [[1]], sampling, decoder=decoder)]
    with torch.inference_mode():
        logits = model(torch.tensor([[1, *tokens[:-1]]], device=model.head.weight.device))[0].float()
    values = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
    assert (logits.amax(dim=1) - values).max() < 0.5 * logits.std()  # other tokens are 2 or 3 away from the largest


def test_a_compiled_run_learns_what_an_eager_one_does(tmp_path, capsys):
    eager_run = run(cuda_config(tmp_path, "runtime.precision=fp32", name="eager"))
    compiled_run = run(make_config(tmp_path, "runtime.device=cuda", "runtime.compile=true", "runtime.precision=fp32"))
    assert "continuing without it" not in capsys.readouterr().out
    assert compiled_run.val_loss == pytest.approx(eager_run.val_loss, rel=1e-3)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_gradients_of_a_loss_in_pieces_are_the_eager_ones(monkeypatch, mode):
    monkeypatch.setattr(chunked_loss, "MAX_LOGITS", 2**14)
    config = parse_config("", "t", ["model.zero_init=false", "model.n_layer=2", "runtime.device=cuda"])
    state = TrainingState.initialize(config, 300, setup_runtime(config.runtime), print)
    tokens = torch.randint(300, (2, 4, 64), generator=torch.Generator().manual_seed(0)).cuda()
    assert chunked_loss.needs_chunking(state.model, tokens[0].numel())
    actual = []
    for compile_mode in (None, mode):
        engine = TorchEngine(state.model, setup_runtime(config.runtime), state.grad_scaler, print, compile_mode)
        for step in range(4):  # what a CUDA graph replays begins with the third
            engine.forward_backward(*tokens, 1, step)
            gradients = [p.grad.clone() for p in state.parameters]
            state.optimizer.zero_grad()
        assert compile_mode is None or engine.loss is not engine.eager, "it went on eager"
        actual.append(gradients)
    for eager_gradient, compiled_gradient in zip(*actual, strict=True):
        assert (compiled_gradient - eager_gradient).norm() <= 0.03 * eager_gradient.norm()


def test_replayed_dropout_is_that_of_its_seed():
    config = parse_config("", "t", ["model.dropout=0.5", "runtime.device=cuda", "runtime.precision=fp32"])
    runtime = setup_runtime(config.runtime)
    state = TrainingState.initialize(config, 300, runtime, print)
    engine = TorchEngine(state.model, runtime, state.grad_scaler, print, "reduce-overhead")
    tokens = torch.zeros(2, 4, 64, dtype=torch.int64, device="cuda")
    losses = [engine.forward_backward(*tokens, 1, seed).item() for seed in (1, 2, 3, 4, 3, 4)]
    assert losses[2:4] == losses[4:6]
    assert len(set(losses)) == 4
    assert engine.reuses_gradients, "it went on eager"


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("true", ("train.micro_batch_size=2", "model.dropout=0.2", "optim.ema=0.9")),
        ("reduce-overhead", ()),
        ("reduce-overhead", ("train.micro_batch_size=2", "model.dropout=0.2", "optim.ema=0.9")),
    ],
)
def test_a_compiled_run_resumes_bit_for_bit(tmp_path, monkeypatch, capsys, mode, changes):
    changes = (f"runtime.compile={mode}", "runtime.deterministic=true", *changes)
    uninterrupted = run(cuda_config(tmp_path, *changes, name="whole"))
    interrupt_at(monkeypatch, 4, signal.SIGTERM)
    config = cuda_config(tmp_path, *changes, name="stopped")
    run(config)
    resumed = run(config)
    assert "continuing without it" not in capsys.readouterr().out
    assert weights(resumed) == weights(uninterrupted)
