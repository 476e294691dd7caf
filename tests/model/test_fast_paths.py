"""What a model is made of is its formula, compiled and in bf16, too."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from gpt_cli.config import ModelConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.model.layers import GatedMLP, RMSNorm
from gpt_cli.model.position import Rotary, rotary_frequencies
from gpt_cli.runtime.device import Runtime
from tests.support.tensors import assert_equal_with_gradients


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 4, 8), (1, 1)])
def test_rms_norm_is_its_formula(shape):
    norm, x, gain = RMSNorm(shape[-1], 1e-5), random(*shape), random(shape[-1])
    norm.weight.data = gain.data
    expected = x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * gain
    torch.testing.assert_close(norm(x), expected)


def test_the_gated_mlp_is_its_formula():
    mlp = GatedMLP(ModelConfig(n_embd=8, n_head=1, mlp_ratio=2.0, bias=True)).double()
    x = random(3, 5, 8)
    gate, up = (x @ w.mT + b for w, b in zip(mlp.gate_up.weight.split(16), mlp.gate_up.bias.split(16), strict=True))
    expected = (gate * torch.sigmoid(gate) * up) @ mlp.down.weight.mT + mlp.down.bias
    torch.testing.assert_close(mlp(x), expected)


@pytest.mark.system
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # how torch looks into one
def test_a_model_compiles_as_one_graph_and_has_the_same_gradients():
    """A graph that breaks in every layer is launched, and recorded, in as many pieces."""
    torch.manual_seed(0)
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 8, "context_length": 6, "zero_init": False, "bias": True}
    model = GPT(ModelConfig(**shape, position="rope", norm="rmsnorm", mlp="swiglu"), 5).double()
    tokens, parameters = torch.arange(10).view(2, 5) % 5, tuple(model.parameters())
    torch._dynamo.reset()
    counters.clear()
    fast = torch.compile(model, backend="aot_eager")
    assert_equal_with_gradients(fast(tokens), model(tokens), parameters)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_rotating_is_multiplying_by_a_rotation_matrix_for_each_pair():
    rotary = Rotary(16, rotary_frequencies(ModelConfig(n_embd=8, n_head=1, rope_theta=100.0))).double()
    x = random(2, 3, 5, 8)
    expected = torch.empty(2, 3, 5, 8, dtype=torch.float64)
    for t in range(5):
        for i in range(4):
            angle = torch.tensor((t + 7) * 100.0 ** (-2 * i / 8), dtype=torch.float32).double()
            a, b = x[:, :, t, i], x[:, :, t, i + 4]
            expected[:, :, t, i] = a * angle.cos() - b * angle.sin()
            expected[:, :, t, i + 4] = b * angle.cos() + a * angle.sin()
    actual = rotary(x, 7)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    weights = torch.linspace(-1, 1, 240, dtype=torch.float64).view(2, 3, 5, 8)
    a, e = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (actual, expected))
    torch.testing.assert_close(a, e, atol=1e-5, rtol=1e-5)


def test_under_autocast_results_are_those_of_fp32_up_to_rounding_and_parameters_stay_as_they_are():
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=2, n_embd=32, context_length=8, zero_init=False), 17)
    tokens, parameters = torch.arange(16).view(2, 8) % 17, tuple(model.parameters())
    upstream = torch.linspace(-1, 1, 2 * 8 * 17).view(2, 8, 17)
    exact = model(tokens)
    with Runtime(torch.device("cpu"), "bf16", threads=1).autocast():
        rounded = model(tokens)
    assert 0 < relative_error(rounded, exact) < 0.02
    for a, e in zip(
        torch.autograd.grad(rounded.float(), parameters, upstream),
        torch.autograd.grad(exact, parameters, upstream),
        strict=True,
    ):
        assert a.dtype == torch.float32
        assert relative_error(a, e) < 0.04


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).norm() / expected.norm()).item()
