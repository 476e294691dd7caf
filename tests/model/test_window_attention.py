"""Windows by FlexAttention are the definition; a CPU computes them without its kernels, gradients included."""

import sys

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask, noop_mask

from gpt_cli.config import ModelConfig
from gpt_cli.model import attention
from gpt_cli.model.attention import causal_mask, reference_attention, takes_flex
from gpt_cli.model.gpt import GPT
from gpt_cli.model.window_attention import flex_window_attention, window_blocks
from gpt_cli.training.torch_engine import token_loss

CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # how torch looks into one
]


@pytest.fixture(autouse=True)
def with_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch forbids gradients of it on a CPU, where its kernel has none; what it computes without a kernel has."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    torch._dynamo.reset()


def random_qkv(n_token: int, n_kv_head: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n_token)
    shapes = [(2, heads, n_token, 16) for heads in (4, n_kv_head, n_kv_head)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("n_token", "window", "n_kv_head"), [(200, 50, 2), (300, 130, 4), (64, 1, 1)])
def test_a_window_by_flex_attention_is_the_reference_and_so_are_its_gradients(compiled, n_token, window, n_kv_head):
    inputs = random_qkv(n_token, n_kv_head)
    attend = flex_window_attention
    if compiled:
        attend = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=False)
    actual, expected = attend(*inputs, window), reference_attention(*inputs, window=window)
    torch.testing.assert_close(actual, expected)
    upstream = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    for a, e in zip(*(torch.autograd.grad(y, inputs, upstream) for y in (actual, expected)), strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize(("n_token", "window"), [(1024, 256), (1000, 129), (300, 1), (100, 7)])
def test_the_blocks_that_are_computed_hold_every_visible_key_and_skipped_ones_none(n_token, window):
    """A kernel looks at no other key, which computing without one does not show."""
    mask = BlockMask((n_token, n_token), *window_blocks(n_token, window, CPU), (128, 128), noop_mask)
    n_block = -(-n_token // 128)
    visible = torch.zeros(n_block * 128, n_block * 128, dtype=torch.bool)
    visible[:n_token, :n_token] = causal_mask(n_token, n_token, window, CPU)
    any_visible = visible.view(n_block, 128, n_block, 128).transpose(1, 2).flatten(2).any(-1)
    assert mask.to_dense()[0, 0].bool().equal(any_visible)


def test_all_layers_and_steps_have_the_same_blocks():
    first, second = (window_blocks(256, 64, CPU) for _ in range(2))
    assert all(a is b for a, b in zip(first, second, strict=True))


@pytest.mark.system
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_model_with_windows_and_grouped_queries_compiles_as_one_graph_by_flex_attention(monkeypatch, precision):
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=2, n_head=4, n_kv_head=2, n_embd=64, context_length=160, window=50), 23)
    inputs, targets = torch.randint(23, (2, 2, 160))
    calls = []

    def flexing(q: Tensor, k: Tensor, dropout: float) -> bool:
        calls.append(q.shape)
        return True

    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        exact = torch.autograd.grad(token_loss(model, inputs, targets), model.parameters())
        monkeypatch.setattr(attention, "takes_flex", flexing)
        monkeypatch.delitem(sys.modules, "gpt_cli.model.window_attention")  # a run imports it while it is compiled
        fast = torch.compile(token_loss, backend="aot_eager", fullgraph=True, dynamic=False)
        actual = torch.autograd.grad(fast(model, inputs, targets), model.parameters())
    assert calls
    tolerance = 1e-5 if precision == torch.float32 else 0.05
    for a, e in zip(actual, exact, strict=True):
        assert (a - e).norm() <= tolerance * e.norm()


def test_flex_attention_is_for_compiled_gpus_alone():
    q = torch.zeros(1, 1, 4, 16)
    assert not takes_flex(q, q, 0.0)
