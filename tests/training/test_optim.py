"""Muon is its written-out self; groups and state are what they should be."""

from functools import partial

import pytest
import torch
from torch import Tensor

from gpt_cli.config import ModelConfig, OptimConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.training.ema import EMA
from gpt_cli.training.grad_scaler import GradScaler
from gpt_cli.training.muon import POLAR_EXPRESS, Muon, newton_schulz, newton_schulz_batched
from gpt_cli.training.optim import MuonAdamW, fused_row_splits

MODEL = ModelConfig(n_layer=2, n_head=4, n_kv_head=2, n_embd=32, context_length=8, norm="layernorm", bias=True)


def make_model(seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(MODEL, 17)


def fill_gradients(model: GPT, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


def reference_orthogonal(matrix: Tensor) -> Tensor:
    """One matrix, in fp64, by the formula alone."""
    x = matrix / (matrix.norm() * 1.02 + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        x = a * x + b * (x @ x.T) @ x + c * (x @ x.T) @ (x @ x.T) @ x
    return x


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 40)])
def test_orthogonalise_keeps_the_singular_vectors_and_brings_the_singular_values_near_one(shape):
    matrix = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = newton_schulz(matrix)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    values = u.mT @ result @ v.mT
    diagonal = values.diagonal(dim1=-2, dim2=-1)
    assert ((diagonal > 0.7) & (diagonal < 1.3)).all()
    assert (values - torch.diag_embed(diagonal)).abs().max() < 1e-6
    torch.testing.assert_close(result, torch.stack([reference_orthogonal(m) for m in matrix]))


def test_orthogonalise_in_bf16_is_near_fp64_and_leaves_zero_at_zero():
    matrix = torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(0))
    exact, rounded = newton_schulz(matrix.double()), newton_schulz(matrix.bfloat16()).double()
    assert (exact - rounded).norm() / exact.norm() < 0.05
    assert not newton_schulz(torch.zeros(1, 8, 8)).any()


def test_muon_equals_its_written_out_reference_over_several_steps():
    torch.manual_seed(0)
    shapes = {"a": (24, 16), "b": (16, 40), "qkv": (32, 16)}
    splits = {"qkv": (16, 8, 8)}
    ours = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    reference = {name: p.clone() for name, p in ours.items()}
    buffers = {name: torch.zeros_like(p) for name, p in ours.items()}
    muon = Muon(
        ours,
        splits,
        lr=0.02,
        momentum=0.9,
        weight_decay=0.1,
        orthogonalise=partial(newton_schulz_batched, dtype=torch.float64),
    )
    for step in range(5):
        multiplier = 1.0 - step / 10
        for name, parameter in ours.items():
            parameter.grad = torch.randn(shapes[name], dtype=torch.float64)
            buffers[name] = 0.9 * buffers[name] + 0.1 * parameter.grad
            update = 0.1 * parameter.grad + 0.9 * buffers[name]
            directions = []
            for block in update.split(splits.get(name, (shapes[name][0],))):
                rows, columns = block.shape
                directions.append(max(1, rows / columns) ** 0.5 * reference_orthogonal(block))
            lr = 0.02 * multiplier
            reference[name] = (1 - lr * 0.1) * reference[name] - lr * torch.cat(directions)
        muon.step(multiplier)
    for name in shapes:
        torch.testing.assert_close(ours[name], reference[name], atol=1e-6, rtol=1e-5)  # Muon adds in fp32


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_vectors_never_decay_and_everything_else_does(name):
    model = make_model()
    optimizer = MuonAdamW(model, OptimConfig(name=name, lr=0.1, adamw_lr=0.1, weight_decay=0.5))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
        p.data.fill_(1.0)
    optimizer.step(1.0)
    for parameter in model.parameters():
        decayed = torch.full_like(parameter, 0.95 if parameter.dim() >= 2 else 1.0)
        torch.testing.assert_close(parameter.data, decayed)


def test_muon_takes_the_hidden_matrices_and_adamw_each_other_parameter_once():
    model = make_model()
    optimizer = MuonAdamW(model, OptimConfig(name="muon"))
    names = set(dict(model.named_parameters()))
    assert set(optimizer.muon.parameters) == {
        n for n in names if "blocks" in n and n.endswith("weight") and "norm" not in n
    }
    assert set(optimizer.muon.parameters) | set(optimizer.adamw.parameters) == names
    assert not set(optimizer.muon.parameters) & set(optimizer.adamw.parameters)


def test_the_rows_of_fused_projections_add_up_to_them():
    shapes = {name: p.shape for name, p in make_model().named_parameters()}
    for name, rows in fused_row_splits(MODEL).items():
        assert sum(rows) == shapes[name][0]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_an_optimizer_restored_from_its_state_continues_bit_for_bit(name):
    config = OptimConfig(name=name, lr=0.01)
    original = make_model()
    optimizer = MuonAdamW(original, config)
    for step in range(3):
        fill_gradients(original, step)
        optimizer.step(1.0)
    copied = make_model(seed=1)
    copied.load_state_dict(original.state_dict())
    restored = MuonAdamW(copied, config)
    for key, value in optimizer.state_tensors().items():
        restored.state_tensors()[key].copy_(value)
    for step in range(3, 6):
        for model, opt in ((original, optimizer), (copied, restored)):
            fill_gradients(model, step)
            opt.step(0.5)
    for (key, a), b in zip(original.state_dict().items(), copied.state_dict().values(), strict=True):
        assert a.equal(b), key
    for key, value in optimizer.state_tensors().items():
        assert value.equal(restored.state_tensors()[key]), key


def test_adamw_is_torchs_adamw():
    model, twin = make_model(), make_model()
    optimizer = MuonAdamW(model, OptimConfig(name="adamw", lr=0.01, weight_decay=0.1))
    groups = [
        {"params": [p for p in twin.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in twin.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8, fused=True)
    for step in range(4):
        fill_gradients(model, step)
        fill_gradients(twin, step)
        optimizer.step(1.0)
        reference.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_average_of_weights_is_the_recurrence_and_is_only_applied_inside():
    model = make_model()
    average = EMA(dict(model.named_parameters()), 0.5)
    name, parameter = next(iter(model.named_parameters()))
    expected = None
    for step in range(4):
        parameter.data.fill_(float(step))
        average.update(step)
        weight = max(0.5, 1 / (step + 1))
        expected = float(step) if expected is None else (1 - weight) * expected + weight * step
    with average.swapped_in():
        assert parameter.flatten()[0].item() == pytest.approx(expected)
        assert average.state_tensors()[f"raw/{name}"].flatten()[0].item() == 3.0
    assert parameter.flatten()[0].item() == 3.0


def test_without_a_decay_the_weights_are_their_own_average():
    model = make_model()
    average = EMA(dict(model.named_parameters()), None)
    before = [p.clone() for p in model.parameters()]
    average.update(0)
    with average.swapped_in():
        assert all(a.equal(b) for a, b in zip(before, model.parameters(), strict=True))
    assert average.state_tensors() == {}


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_the_loss_scale_halves_on_overflow_and_grows_back(value):
    scale = GradScaler(enabled=True)
    first = scale.scale.item()
    assert scale.update(torch.tensor(value)).item() == 1.0
    assert (scale.scale.item(), scale.good_updates.item()) == (first / 2, 0)
    for _ in range(2000):
        assert scale.update(torch.tensor(1.0)).item() == 0.0
    assert (scale.scale.item(), scale.good_updates.item()) == (first, 0)
    scale.update(torch.tensor(1.0))
    assert (scale.scale.item(), scale.good_updates.item()) == (first, 1)


@pytest.mark.parametrize("overflow", [float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_an_update_of_gradients_that_overflowed_changes_no_bit_and_one_of_others_is_the_plain_one(name, overflow):
    config = OptimConfig(name=name, lr=0.01, weight_decay=0.1)
    skipping, plain = make_model(), make_model()
    optimizers = MuonAdamW(skipping, config), MuonAdamW(plain, config)
    for step in range(3):
        for model, optimizer in zip((skipping, plain), optimizers, strict=True):
            fill_gradients(model, step)
            optimizer.step(0.5, torch.zeros(()) if model is skipping else None)
        before = [t.clone() for t in (*skipping.state_dict().values(), *optimizers[0].state_tensors().values())]
        fill_gradients(skipping, step)
        for p in skipping.parameters():
            p.grad[..., 0] = overflow
        optimizers[0].step(0.5, torch.ones(()))
        after = [*skipping.state_dict().values(), *optimizers[0].state_tensors().values()]
        assert all(a.equal(b) for a, b in zip(before, after, strict=True))
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(skipping.state_dict()[key], value)  # Muon multiplies by its rate in another order


def test_a_loss_scale_that_is_off_lets_every_update_be():
    scale = GradScaler(enabled=False)
    assert scale.update(torch.tensor(float("nan"))) is None
    assert scale.scale.item() == 1.0


def test_scaling_the_loss_and_unscaling_the_gradients_changes_nothing():
    weight = torch.tensor([3.0], requires_grad=True)
    scale = GradScaler(enabled=True)
    scale.scale_loss((weight * 2).sum()).backward()
    scale.unscale_([weight])
    assert weight.grad.item() == 2.0
