"""On a CUDA device: every precision trains, repeats and resumes, fast paths are the reference, memory runs out well."""

import contextlib
import signal
from dataclasses import replace
from itertools import takewhile

import pytest
import torch
from test_health import HARMS, at_step
from test_training import interrupt_at, make_config, run, samples, timeless, weights

from gpt_cli.config import ModelConfig, parse_config
from gpt_cli.errors import UserError
from gpt_cli.model.attention import causal_attention, matmul_attention, reference_attention, sdpa_attention
from gpt_cli.model.attention_kernel import KERNELS, TORCH, attention_candidates
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import list_checkpoints, load
from gpt_cli.run.load import load_model
from gpt_cli.run.log import read_events
from gpt_cli.runtime.device import Runtime, open_runtime, set_deterministic
from gpt_cli.runtime.fastest import difference
from gpt_cli.runtime.late import Late
from gpt_cli.sampling import Sampling
from gpt_cli.sampling.generate import Continuations, generate
from gpt_cli.sampling.noise import GumbelNoise
from gpt_cli.sampling.replayed import DecodeStep, Replayed
from gpt_cli.selftest.model import check_cache, check_causality
from gpt_cli.training import quickest
from gpt_cli.training.batches import Batches
from gpt_cli.training.loop import train_step
from gpt_cli.training.quickest import equip
from gpt_cli.training.state import TrainingState
from gpt_cli.training.way import COMPILED, EAGER, GRAPHS, WHOLE

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


def measured(tmp_path, monkeypatch, *overrides, name="run"):
    """A run that takes what is fastest here, short as it is."""
    monkeypatch.setattr(quickest, "_STEPS_TO_WIN_BACK", 1)
    monkeypatch.setattr(quickest, "_SECONDS_TO_WIN_BACK", 0.0)
    return make_config(tmp_path, "runtime.device=cuda", "runtime.measure=true", *overrides, name=name)


@pytest.mark.parametrize("deterministic", ["true", "false"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_measured_to_be_fastest_learns_what_the_plain_step_does(
    tmp_path, monkeypatch, capsys, precision, deterministic
):
    plain = run(cuda_config(tmp_path, f"runtime.precision={precision}", name="plain"))
    changes = (f"runtime.precision={precision}", f"runtime.deterministic={deterministic}")
    fast = run(measured(tmp_path, monkeypatch, *changes))
    out = capsys.readouterr().out
    assert "going on without it" not in out
    assert "forward and backward: " in out
    assert fast.val_loss == pytest.approx(plain.val_loss, rel=1e-3 if precision == "fp32" else 2e-2)


APART = ("train.micro_batch_size=2", "model.dropout=0.2", "optim.ema=0.9")


@pytest.mark.parametrize(
    ("launch", "changes"),
    [
        *((launch, ()) for launch in (COMPILED, GRAPHS, WHOLE)),
        *((launch, APART) for launch in (COMPILED, GRAPHS)),
        (WHOLE, ("model.dropout=0.2", "optim.ema=0.9")),
        (WHOLE, ("optim.name=adamw",)),
    ],
)
def test_a_run_with_a_kept_choice_resumes_bit_for_bit(tmp_path, monkeypatch, capsys, launch, changes):
    real = quickest.fastest

    def biased(candidates, wait, tolerance):
        found = real(candidates, wait, tolerance)
        assert not {COMPILED, GRAPHS, WHOLE} & found.dropped.keys(), found.dropped
        wanted = (launch, COMPILED) if launch == WHOLE else (launch,)
        return next((replace(found, name=name) for name in wanted if name in found.seconds), found)

    monkeypatch.setattr(quickest, "fastest", biased)
    whole = run(measured(tmp_path, monkeypatch, *changes, name="whole"))
    interrupt_at(monkeypatch, 4, signal.SIGTERM)
    config = measured(tmp_path, monkeypatch, *changes, name="stopped")
    run(config)
    second = run(config)
    assert f"steps {launch}: as measured when this run began" in capsys.readouterr().out
    assert weights(second) == weights(whole)


def test_an_attention_kernel_equals_the_plain_one_or_says_that_it_cannot_and_one_can():
    model = parse_config("", "t", ["model.n_head=4", "model.n_embd=256", "model.context_length=256"]).model
    set_deterministic(False)
    candidates = attention_candidates(model, 4, Runtime(torch.device("cuda"), "bf16", 1))
    expected, differences = candidates[TORCH](), {}
    for kernel in KERNELS:
        with contextlib.suppress(RuntimeError):  # torch's way to say that it does not know this shape on this device
            differences[kernel] = difference(candidates[kernel](), expected)
    assert differences
    assert max(differences.values()) < 0.05


@pytest.mark.parametrize(
    "changes",
    [(), ("optim.name=adamw",), ("train.micro_batch_size=2", "optim.ema=0.9"), ("runtime.precision=fp16",)],
)
def test_no_step_waits_for_the_device(tmp_path, changes):
    config = cuda_config(tmp_path, *changes)
    runtime = open_runtime(config.runtime)
    state = TrainingState.fresh(config, 11, runtime, print)
    batches = Batches.of(config, torch.zeros(500, dtype=torch.int32, device="cuda"))
    train_step(state, batches.at(0), config, 0, 1.0, runtime)
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss, norms = train_step(state, batches.at(1), config, 1, 1.0, runtime)
        late = Late(torch.stack([loss, torch.linalg.vector_norm(norms)]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert late.read() == [loss.item(), torch.linalg.vector_norm(norms).item()]


@pytest.mark.parametrize("changes", [(), ("optim.name=adamw", "optim.ema=0.9"), ("runtime.precision=fp16",)])
@pytest.mark.parametrize("compile_update", [False, True])
def test_a_replayed_step_is_the_step_as_written_and_waits_for_nothing(tmp_path, changes, compile_update):
    config = cuda_config(tmp_path, "runtime.precision=fp32", *changes)
    runtime = open_runtime(config.runtime)
    tokens = torch.randint(11, (500,), generator=torch.Generator().manual_seed(0), dtype=torch.int32).cuda()
    batches, seen = Batches.of(config, tokens), []
    for launch in (EAGER, WHOLE):
        state = TrainingState.fresh(config, 11, runtime, print)
        state.way.use(TORCH, launch, "here", state.way.plain)
        equip(state, config, runtime, compile_update=compile_update and launch == WHOLE)
        for step in range(8):
            torch.cuda.set_sync_debug_mode("error" if step > 3 else "default")  # recorded by then
            try:
                results = state.way.taking(train_step)(state, batches.at(step), config, step, 1.0 - step / 9, runtime)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            seen.append(results)
    assert state.way.launch == WHOLE
    rtol = 1e-2 if runtime.precision == "fp16" else 1e-3
    for (loss, norms), (replayed_loss, replayed_norms) in zip(seen[:8], seen[8:], strict=True):
        torch.testing.assert_close(replayed_loss, loss, rtol=rtol, atol=1e-5)
        torch.testing.assert_close(replayed_norms, norms, rtol=10 * rtol, atol=1e-3)


DECODED = {
    "default": {},
    "gpt-2": {"position": "learned", "norm": "layernorm", "mlp": "gelu", "qk_norm": False},
    "few keys": {"n_kv_head": 1, "window": 30, "logit_softcap": 5.0},
}


def decoding(options, dtype=torch.float32, vocab_size=300):
    set_deterministic(False)
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 128, "context_length": 200}
    torch.manual_seed(0)
    config = ModelConfig(**shape, **options, zero_init=False, init_std=0.1)
    return GPT(config, vocab_size).cuda().to(dtype).eval()


def refuse(note):
    raise AssertionError(note)


@pytest.mark.parametrize("options", DECODED)
@pytest.mark.parametrize("prompts", [[[1]], [[1, 2]] * 3, [[1], [2, 3, 4] * 20, [5] * 300]], ids=["1", "3", "unequal"])
@pytest.mark.parametrize(
    "kind", [{"temperature": 0.0}, {}, {"top_k": 50, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95}], ids=str
)
def test_replays_write_what_the_plain_way_writes_but_for_ties(options, prompts, kind):
    model, sampling = decoding(DECODED[options]), Sampling(**kind, seed=1, max_new_tokens=500)
    expected = list(generate(model, prompts, sampling))
    found = list(generate(model, prompts, sampling, replayed=Replayed(refuse)))
    # Once two tokens were as good as equal, texts go apart: whoever drew other noise, or saw another window, would at
    # once, within the context or when it is full (which is after 140 tokens of the longer prompts).
    agree = [
        sum(1 for _ in takewhile(lambda p: p[0] == p[1], zip(*rows, strict=True)))
        for rows in zip(zip(*expected, strict=True), zip(*found, strict=True), strict=True)
    ]
    assert sorted(agree)[len(agree) // 2] == 500, agree


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("compiling", [False, True])
def test_in_half_precision_a_step_is_recorded_too_and_found_right(dtype, compiling):
    model = decoding({}, dtype)
    written = list(generate(model, [[1]], Sampling(max_new_tokens=60), replayed=Replayed(refuse, compiling=compiling)))
    assert len(written) == 60


def test_no_replay_waits_for_the_device():
    model, sampling = decoding({}), Sampling(top_k=50, top_p=0.9, max_new_tokens=100)
    rows, noise = Continuations(model, [[1], [2, 3]]), GumbelNoise(1, 2, 300, torch.device("cuda"))
    with torch.inference_mode():
        rows.append(rows.next_logits().argmax(dim=-1))
        step = DecodeStep(model, rows, sampling, [])
        rows.extend(step.take(8, noise).tokens.T)  # recorded by then
        noise.pass_by(8)
        torch.cuda.set_sync_debug_mode("error")
        try:
            chunks = []
            for _ in range(3):
                chunks.append(step.take(8, noise))
                noise.pass_by(8)
                rows.extend(chunks[-1].tokens.T)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for chunk in chunks:
        assert list(chunk.read(None)) == chunk.tokens.tolist()


def test_noise_drawn_ahead_is_the_noise_of_each_step_on_the_device():
    for vocab_size in (11, 50257):
        plain, ahead = (GumbelNoise(4, [0, 2, 0], vocab_size, torch.device("cuda")) for _ in range(2))
        for steps in (1, 3, 8):
            expected = torch.stack([plain.draw() for _ in range(steps)])
            assert ahead.ahead(steps).equal(expected)
            ahead.pass_by(steps)


def test_batches_are_those_of_a_cpu_whichever_epoch_they_are_of():
    tokens = torch.arange(1000, dtype=torch.int32)
    here, there = (Batches(t, 16, 12, 12, seed=7) for t in (tokens, tokens.cuda()))
    for step in (0, 4, 5, 1000):
        for expected, found in zip(here.at(step)[0], there.at(step)[0], strict=True):
            assert found.cpu().equal(expected)


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
