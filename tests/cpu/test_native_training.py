"""The compiled network and Muon against their definitions: the model under autograd, and torch's orthogonalisation."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.config import RuntimeConfig
from gpt_cli.cpu.common.kernel import KernelUnavailable
from gpt_cli.cpu.train.native_engine import NativeEngine
from gpt_cli.cpu.train.native_muon import NativeMuon
from gpt_cli.cpu.train.train_bindings import Backend, NativeLibrary
from gpt_cli.errors import RequestError
from gpt_cli.model.attention import reference_attention
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.device import Runtime
from gpt_cli.training.evaluate import IGNORED, cross_entropy
from gpt_cli.training.muon import POLAR_EXPRESS, Muon, newton_schulz_batched
from gpt_cli.training.select_engine import build_native_engine
from tests.support.autograd_reference import by_autograd, make_model
from tests.support.native import attention_dropout_masks, dropout_masks

LAYOUTS = [
    {},
    {"position": "learned", "norm": "layernorm", "mlp": "gelu", "qk_norm": False, "bias": True, "tie_embeddings": True},
    {"position": "sinusoidal", "mlp": "relu", "logit_softcap": 5.0},
    {"mlp": "relu2", "n_kv_head": 2, "window": 20, "norm_gain": False},
    {"position": "none", "n_kv_head": 1, "window": 100},
    {"qk_norm": False, "norm": "layernorm", "bias": False},
]


def library(dtype: torch.dtype) -> NativeLibrary:
    try:
        return NativeLibrary.load(dtype)
    except KernelUnavailable as error:
        pytest.skip(f"there is no compiled code here: {error}")


def bf16_library(*, tiles: bool) -> NativeLibrary:
    """With AMX's tiles, or with AVX512's registers, which every processor that has the former has, too."""
    actual = library(torch.bfloat16)
    if tiles and not actual.backend.amx:
        pytest.skip("there is no AMX here")
    backend = Backend(actual.backend.sgemm, actual.backend.set_threads, int(tiles))
    return replace(actual, backend=backend)


def windows(batch: int, length: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, vocab_size, (batch, length + 1))
    return tokens[:, :-1], tokens[:, 1:]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / (b.norm() + 1e-12))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("options", LAYOUTS, ids=str)
def test_loss_and_gradients_of_every_layout_are_those_of_autograd(options, threads):
    model = make_model(options, 65)
    inputs, targets = windows(5, 80, 65)
    loss, gradients = by_autograd(model, inputs, targets)
    native = NativeEngine(model, library(torch.float32), threads)
    assert native.loss_and_gradients(inputs, targets, 1 / 400) / 400 == pytest.approx(loss, abs=2e-6)
    assert native.summed_loss(inputs, targets).item() / 400 == pytest.approx(loss, abs=2e-6)
    assert {name for name, p in model.named_parameters() if p.grad is not None} == set(gradients)
    distances = {name: distance(p.grad, gradients[name]) for name, p in model.named_parameters()}
    assert max(distances.values()) < 2e-5, distances


def test_parameters_that_are_not_trained_get_no_gradient_from_either_engine():
    """The norm by which gradients are clipped is of those that are there: the two engines must agree which are."""
    model = make_model({}, 65)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("attention.qkv" in name)
    inputs, targets = windows(2, 20, 65)
    _, expected = by_autograd(model, inputs, targets)
    NativeEngine(model, library(torch.float32), 1).loss_and_gradients(inputs, targets, 1 / inputs.numel())
    actual = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert actual.keys() == expected.keys()
    assert max(distance(actual[name], expected[name]) for name in expected) < 2e-5


@settings(max_examples=25)
@given(
    batch=st.integers(1, 7),
    length=st.integers(1, 80),
    vocab_size=st.sampled_from([2, 17, 300]),
    window=st.one_of(st.none(), st.integers(1, 90)),
    layers=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_any_batch_and_length_gives_the_gradients_of_autograd(batch, length, vocab_size, window, layers, seed):
    model = make_model({"window": window, "n_layer": layers, "n_kv_head": 2}, vocab_size, seed)
    inputs, targets = windows(batch, length, vocab_size)
    loss, gradients = by_autograd(model, inputs, targets)
    native = NativeEngine(model, library(torch.float32), 2)
    assert native.loss_and_gradients(inputs, targets, 1 / inputs.numel()) / inputs.numel() == pytest.approx(
        loss, abs=1e-5
    )
    actual = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert distance(actual, torch.cat([g.flatten() for g in gradients.values()])) < 1e-4


@pytest.mark.parametrize("tiles", [True, False], ids=["AMX", "AVX512"])
@pytest.mark.parametrize("options", LAYOUTS, ids=str)
def test_in_bf16_the_gradient_points_where_the_exact_one_does(options, tiles):
    model = make_model(options, 65)
    inputs, targets = windows(6, 80, 65)
    loss, gradients = by_autograd(model, inputs, targets)
    native = NativeEngine(model, bf16_library(tiles=tiles), 2)
    assert native.loss_and_gradients(inputs, targets, 1 / 480) / 480 == pytest.approx(loss, abs=5e-3)
    actual = torch.cat([p.grad.flatten() for p in model.parameters()])
    expected = torch.cat([g.flatten() for g in gradients.values()])
    assert distance(actual, expected) < 0.03


@settings(max_examples=20)
@given(
    batch=st.integers(1, 7),
    length=st.integers(1, 80),
    vocab_size=st.sampled_from([2, 33, 300]),
    width=st.sampled_from([8, 40, 72]),
    window=st.one_of(st.none(), st.integers(1, 90)),
)
def test_in_bf16_both_kinds_of_instructions_agree_whatever_the_sizes(batch, length, vocab_size, width, window):
    """A weight's gradient differs by less than its last digits between the two kinds of instructions."""
    model = make_model({"window": window, "n_layer": 1, "n_embd": width}, vocab_size)
    inputs, targets = windows(batch, length, vocab_size)
    actual = []
    for tiles in (True, False):
        NativeEngine(model, bf16_library(tiles=tiles), 2).loss_and_gradients(inputs, targets, 1.0)
        actual.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())
        model.zero_grad()
    assert distance(*actual) < 5e-3
    if inputs.numel() >= 32 and vocab_size > 2:  # with fewer, what is left of terms that cancel is rounding
        _, gradients = by_autograd(model, inputs, targets)
        expected = inputs.numel() * torch.cat([g.flatten() for g in gradients.values()])
        assert distance(actual[0], expected) < 0.05


class FixedDropout(torch.nn.Module):
    """In place of a dropout: the factors it is given, one call after the other."""

    def __init__(self, factors: torch.Tensor) -> None:
        super().__init__()
        self.factors = iter(factors)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * next(self.factors).view_as(x)


def replace_dropouts(model: GPT, masks: torch.Tensor) -> None:
    """In place of the dropouts of the embedding and the residual branches: the factors of `dropout_masks`."""
    model.embedding.dropout = FixedDropout(masks[:1])
    for layer, block in enumerate(model.blocks):
        block.dropout = FixedDropout(masks[1 + 2 * layer : 3 + 2 * layer])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("options", LAYOUTS[:2], ids=str)
def test_dropout_drops_what_the_seed_draws_forwards_and_backwards(options, threads):
    model = make_model({**options, "dropout": 0.3}, 65)
    inputs, targets = windows(5, 80, 65)
    native = NativeEngine(model, library(torch.float32), threads)
    masks = dropout_masks(native, inputs.numel(), 7)
    loss = native.loss_and_gradients(inputs, targets, 1 / 400, seed=7) / 400
    actual = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    replace_dropouts(model, masks)
    expected_loss, gradients = by_autograd(model, inputs, targets)
    assert loss == pytest.approx(expected_loss, abs=2e-6)
    assert all(distance(actual[name], gradient) < 2e-5 for name, gradient in gradients.items())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("options", [*LAYOUTS[:2], {"window": 9}], ids=str)
def test_attention_dropout_is_what_the_seed_draws_forwards_and_backwards(options, threads, monkeypatch):
    model = make_model({**options, "dropout": 0.2, "attention_dropout": 0.3}, 65)
    inputs, targets = windows(5, 80, 65)
    native = NativeEngine(model, library(torch.float32), threads)
    masks = dropout_masks(native, inputs.numel(), 7)
    weights = iter(attention_dropout_masks(native, *inputs.shape, 7))
    loss = native.loss_and_gradients(inputs, targets, 1 / 400, seed=7) / 400
    actual = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    replace_dropouts(model, masks)

    def attention(q, k, v, *, window, **_):
        identity = torch.eye(80).expand(5, k.shape[1], 80, 80)  # so that the definition returns the weights
        return (reference_attention(q, k, identity, window=window) * next(weights)) @ v.repeat_interleave(
            q.shape[1] // k.shape[1], dim=1
        )

    monkeypatch.setattr("gpt_cli.model.layers.causal_attention", attention)
    expected_loss, gradients = by_autograd(model, inputs, targets)
    assert loss == pytest.approx(expected_loss, abs=2e-6)
    assert all(distance(actual[name], gradient) < 2e-5 for name, gradient in gradients.items())


def test_attention_dropout_drops_its_share_independently_of_every_axis_and_seed():
    native = NativeEngine(make_model({"attention_dropout": 0.3}, 65), library(torch.float32), 1)
    masks = torch.stack([attention_dropout_masks(native, 3, 60, seed) for seed in (1, 2, 1 << 40)])
    is_kept = masks > 0  # (seed, layer, sequence, head, query, key)
    assert torch.allclose(masks[is_kept], torch.tensor(1 / 0.7))
    assert is_kept.float().mean().item() == pytest.approx(0.7, abs=4 * (0.21 / is_kept.numel()) ** 0.5)
    for axis in range(6):
        pairs = is_kept.narrow(axis, 1, is_kept.shape[axis] - 1) & is_kept.narrow(axis, 0, is_kept.shape[axis] - 1)
        assert pairs.float().mean().item() == pytest.approx(0.49, abs=5 * (0.49 * 0.51 / pairs.numel()) ** 0.5)


def test_in_bf16_the_gradient_with_attention_dropout_is_near_that_in_fp32():
    inputs, targets = windows(5, 80, 65)
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        model = make_model({"attention_dropout": 0.3}, 65)
        NativeEngine(model, library(dtype), 2).loss_and_gradients(inputs, targets, 1 / 400, seed=7)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert distance(gradients[1], gradients[0]) < 0.05


def test_dropout_drops_its_share_independently_of_rows_columns_places_and_seeds():
    native = NativeEngine(make_model({"dropout": 0.3}, 65), library(torch.float32), 1)
    masks = [dropout_masks(native, 400, seed) for seed in (1, 2, 1 << 40)]
    is_kept = torch.stack(masks) > 0  # (seed, place, row, column)
    assert torch.allclose(torch.stack(masks)[is_kept], torch.tensor(1 / 0.7))
    n = is_kept.numel()
    assert is_kept.float().mean().item() == pytest.approx(0.7, abs=4 * (0.21 / n) ** 0.5)
    for axis in range(4):
        pairs = is_kept.narrow(axis, 1, is_kept.shape[axis] - 1) & is_kept.narrow(axis, 0, is_kept.shape[axis] - 1)
        assert pairs.float().mean().item() == pytest.approx(0.49, abs=5 * (0.49 * 0.51 / pairs.numel()) ** 0.5)


def test_a_loss_alone_drops_nothing():
    model = make_model({"dropout": 0.5}, 65)
    inputs, targets = windows(3, 80, 65)
    native = NativeEngine(model, library(torch.float32), 2)
    model.eval()
    assert native.summed_loss(inputs, targets).item() / 240 == pytest.approx(
        cross_entropy(model(inputs), targets).item(), abs=2e-6
    )


def test_a_second_micro_batch_adds_to_the_gradients_of_the_first():
    model = make_model({}, 65)
    inputs, targets = windows(6, 80, 65)
    native = NativeEngine(model, library(torch.float32), 2)
    native.loss_and_gradients(inputs, targets, 1.0)
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for rows in (slice(0, 2), slice(2, 6)):
        native.loss_and_gradients(inputs[rows], targets[rows], 1.0)
    assert all(distance(p.grad, expected[name]) < 1e-5 for name, p in model.named_parameters())


def test_the_same_call_gives_the_same_bits():
    model = make_model({}, 65)
    inputs, targets = windows(7, 80, 65)
    native = NativeEngine(model, library(torch.float32), 2)
    results = []
    for _ in range(2):
        loss = native.loss_and_gradients(inputs, targets, 1.0)
        results.append((loss, torch.cat([p.grad.flatten() for p in model.parameters()]).clone()))
        model.zero_grad()
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_no_gradient_reaches_the_future():
    model = make_model({}, 65)
    inputs, targets = windows(1, 80, 65)
    native = NativeEngine(model, library(torch.float32), 1)
    old_losses = [native.summed_loss(inputs[:, :n], targets[:, :n]).item() for n in range(1, 80)]
    changed_inputs = inputs.clone()
    changed_inputs[0, 60] = (changed_inputs[0, 60] + 1) % 65
    new_losses = [native.summed_loss(changed_inputs[:, :n], targets[:, :n]).item() for n in range(1, 80)]
    assert old_losses[:60] == new_losses[:60]
    assert old_losses[60:] != new_losses[60:]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_makes_the_loss_so(value):
    for name in ("blocks.0.attention.qkv.weight", "blocks.1.mlp.down.weight", "norm.weight", "head.weight"):
        model = make_model({}, 65)
        with torch.no_grad():
            dict(model.named_parameters())[name].view(-1)[0] = value
        inputs, targets = windows(4, 80, 65)
        loss = NativeEngine(model, library(torch.float32), 2).loss_and_gradients(inputs, targets, 1.0)
        assert not torch.isfinite(torch.tensor(loss)), name


def orthogonalise(native: NativeMuon, matrices, scales):
    """`newton_schulz_batched` by compiled code: the update of zeros without momentum and decay."""
    results, buffers = ([torch.zeros(matrix.shape) for matrix in matrices] for _ in range(2))
    native.update(results, [matrix.clone() for matrix in matrices], buffers, scales, 0.0, 1.0)
    return results


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])  # of the norm
def test_orthogonalised_matrices_are_those_of_torch(dtype, tolerance):
    shapes = [(16, 16), (24, 40), (40, 24), (128, 344), (344, 128), (5, 7)]
    matrices = [torch.randn(shape) * 10.0 ** (i - 3) for i, shape in enumerate(shapes)]
    matrices.append(torch.zeros(8, 8))
    scales = [1.0, -0.5, 2.0, 1.0, 1.0, 1.0, 1.0]
    actual = orthogonalise(NativeMuon(library(dtype), 2, POLAR_EXPRESS), matrices, scales)
    for a, b in zip(actual, newton_schulz_batched(matrices, scales, torch.float32), strict=True):
        assert distance(a, b) < tolerance
    assert not actual[-1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("momentum", [0.95, 0.3])
def test_a_fused_update_of_muon_has_the_bits_of_torch_around_the_same_orthogonalisation(dtype, momentum):
    shapes = {"square": (32, 32), "wide": (24, 40), "tall": (72, 40)}
    fused, by_parts = ({name: torch.ones(shape) * 3 for name, shape in shapes.items()} for _ in range(2))
    native = NativeMuon(library(dtype), 2, POLAR_EXPRESS)
    settings = {"lr": 0.02, "momentum": momentum, "weight_decay": 0.1, "orthogonalise": partial(orthogonalise, native)}
    optimizers = [
        Muon(parameters, {"tall": (40, 16, 16)}, **settings, fused=update)
        for parameters, update in ((fused, native.update), (by_parts, None))
    ]
    for step in range(3):
        for name, shape in shapes.items():
            gradient = torch.randn(shape)
            fused[name].grad, by_parts[name].grad = gradient, gradient.clone()
        for optimizer in optimizers:
            optimizer.step(1.0 - step / 4)
    for name in shapes:
        assert fused[name].equal(by_parts[name]), name
        assert optimizers[0].buffers[name].equal(optimizers[1].buffers[name]), name


def test_what_the_code_does_not_know_is_left_to_torch_or_refused_when_it_is_asked_for():
    cpu = Runtime(torch.device("cpu"), "fp32", 1)
    assert build_native_engine(make_model({"embedding_norm": True}, 65), RuntimeConfig(), cpu) is None
    model = make_model({"norm_position": "post"}, 65)
    assert build_native_engine(model, RuntimeConfig(), cpu) is None
    with pytest.raises(RequestError, match=r"model\.norm_position"):
        build_native_engine(model, RuntimeConfig(engine="native"), cpu)
    assert build_native_engine(make_model({}, 65), RuntimeConfig(engine="torch"), cpu) is None
    notes: list[str] = []
    options = ["parallel.shard: full"]
    assert build_native_engine(make_model({}, 65), RuntimeConfig(), cpu, notes.append, options=options) is None
    assert "computing by torch" in notes[0]
    assert "it does not know parallel.shard: full" in notes[0]


@pytest.mark.parametrize("options", LAYOUTS)
def test_targets_that_do_not_count_add_neither_loss_nor_gradient(options):
    """Of rows that are padded to one length, and of prompts: the rest has the gradient of autograd."""
    model = make_model(options, 50)
    native = NativeEngine(model, library(torch.float32), 2)
    inputs, targets = windows(3, 70, 50)
    targets = targets.clone()
    targets[0, :30], targets[1, 5:], targets[2, ::2] = IGNORED, IGNORED, IGNORED
    n_counted = (targets != IGNORED).sum()
    expected = cross_entropy(model(inputs), targets, "sum") / n_counted
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    assert native.summed_loss(inputs, targets).item() / n_counted == pytest.approx(expected.item(), rel=2e-6)
    assert native.forward_backward(inputs, targets, n_counted, 0).item() == pytest.approx(expected.item(), rel=2e-6)
    for actual, expected_gradient in zip((p.grad for p in model.parameters()), gradients, strict=True):
        torch.testing.assert_close(actual, expected_gradient, rtol=1e-4, atol=2e-6)
