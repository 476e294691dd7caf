"""Each fast path of the model equals the plain one, forwards and backwards."""

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional as F

from gpt_cli.config import ModelConfig
from gpt_cli.model.gpt import GPT
from gpt_cli.model.linear import Linear
from gpt_cli.model.norm import rms_norm
from gpt_cli.model.place import place
from gpt_cli.model.position import Rotary
from gpt_cli.model.swiglu import swiglu
from gpt_cli.runtime.device import Runtime


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def assert_equal_with_gradients(actual: Tensor, expected: Tensor, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(actual, expected)
    weights = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view_as(expected)
    for a, e in zip(
        torch.autograd.grad((actual * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 4, 8), (1, 1)])
def test_rms_norm_is_its_formula(shape):
    x, gain = random(*shape), random(shape[-1])
    expected = x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * gain
    assert_equal_with_gradients(rms_norm(x, gain, 1e-5), expected, (x, gain))
    with torch.no_grad():
        torch.testing.assert_close(rms_norm(x, gain, 1e-5), expected)


def test_swiglu_is_its_formula():
    x = random(3, 5, 16)
    gate, up = x.chunk(2, dim=-1)
    assert_equal_with_gradients(swiglu(x), gate * torch.sigmoid(gate) * up, (x,))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # how torch looks into one
def test_a_model_of_hand_written_gradients_compiles_as_one_graph_and_has_the_same():
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
    rotary = Rotary(16, 8, 100.0).double()
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


@pytest.mark.parametrize("bias", [True, False])
def test_bf16_products_are_fp32_ones_up_to_rounding(bias):
    torch.manual_seed(0)
    layer = Linear(64, 48, bias=bias)
    x = torch.randn(3, 7, 64, requires_grad=True)
    parameters = (x, *layer.parameters())
    exact = F.linear(x, layer.weight, layer.bias)
    layer.bf16_products = True
    rounded = layer(x)
    assert rounded.dtype == torch.float32
    assert relative_error(rounded, exact) < 0.01
    upstream = torch.randn_like(exact)
    for a, e in zip(
        torch.autograd.grad(rounded, parameters, upstream),
        torch.autograd.grad(exact, parameters, upstream),
        strict=True,
    ):
        assert a.dtype == torch.float32
        assert relative_error(a, e) < 0.01


def test_placing_a_model_switches_its_products_and_keeps_its_tensors():
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=2, n_embd=32, context_length=8, zero_init=False), 17)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tokens = torch.arange(8)[None] % 17
    exact = model(tokens)
    place(model, Runtime(torch.device("cpu"), "bf16", threads=1))
    rounded = model(tokens)
    assert 0 < relative_error(rounded, exact) < 0.02
    for name, tensor in model.state_dict().items():
        assert tensor.equal(before[name])
        assert tensor.dtype == before[name].dtype
    place(model, Runtime(torch.device("cpu"), "fp32", threads=1))
    assert model(tokens).equal(exact)


def test_every_linear_layer_of_the_model_can_be_switched():
    model = GPT(ModelConfig(), 17)
    assert all(isinstance(module, Linear) for module in model.modules() if isinstance(module, nn.Linear))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).norm() / expected.norm()).item()
