"""Every attention backend is the definition, faster; and the definition sees no future."""

import math

import pytest
import torch
from torch import Tensor

from gpt_cli.model.attention import (
    causal_attention,
    matmul_attention,
    reference_attention,
    sdpa_attention,
    visible_keys,
)

BACKENDS = [matmul_attention, sdpa_attention, causal_attention]
SHAPES = [  # queries, keys
    pytest.param(7, 7, id="T=S"),
    pytest.param(3, 7, id="T<S"),
    pytest.param(1, 7, id="T=1"),
    pytest.param(1, 1, id="S=1"),
    pytest.param(200, 200, id="long"),
]


def random_qkv(n_query: int, n_key: int, n_head: int = 4, n_kv_head: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n_query * 1000 + n_key)

    def normal(heads: int, length: int) -> Tensor:
        return torch.randn(2, heads, length, 8, generator=generator, dtype=torch.float64).requires_grad_()

    return normal(n_head, n_query), normal(n_kv_head, n_key), normal(n_kv_head, n_key)


def test_the_reference_is_softmax_attention_over_the_visible_keys_one_query_at_a_time():
    q, k, v = random_qkv(3, 5)
    expected = torch.empty(2, 4, 3, 8, dtype=torch.float64)
    for b in range(2):
        for h in range(4):
            for t in range(3):
                seen = range(5 - 3 + t + 1)
                weights = torch.stack([torch.exp(q[b, h, t] @ k[b, h, s] / math.sqrt(8)) for s in seen])
                expected[b, h, t] = sum(w * v[b, h, s] for w, s in zip(weights / weights.sum(), seen, strict=True))
    torch.testing.assert_close(reference_attention(q, k, v), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_kv_head", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize(("n_query", "n_key"), SHAPES)
def test_each_backend_equals_the_reference_and_so_do_its_gradients(backend, n_kv_head, window, n_query, n_key):
    inputs = random_qkv(n_query, n_key, n_kv_head=n_kv_head)
    expected = reference_attention(*inputs, window=window)
    actual = backend(*inputs, window=window)
    torch.testing.assert_close(actual, expected)
    weights = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    for a, e in zip(
        torch.autograd.grad((actual * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("backend", [*BACKENDS, reference_attention])
def test_a_query_has_exactly_zero_gradient_to_later_and_windowed_out_keys(backend):
    q, k, v = random_qkv(6, 6)
    for t in range(6):
        gradients = torch.autograd.grad(backend(q, k, v, window=4)[:, :, t].sum(), (k, v))
        to_k, to_v = (gradient.abs().sum(dim=(0, 1, 3)) > 0 for gradient in gradients)
        assert to_v.tolist() == [t - 4 < s <= t for s in range(6)]
        assert not (to_k & ~to_v).any()


def test_visible_keys_ends_at_the_query_and_starts_a_window_before():
    assert visible_keys(2, 4, None, torch.device("cpu")).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert visible_keys(2, 4, 2, torch.device("cpu")).int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]


def test_attention_dropout_zeroes_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    q, k = torch.zeros(64, 4, 32, 8), torch.zeros(64, 4, 32, 8)
    v = torch.ones(64, 4, 32, 8)
    y = causal_attention(q, k, v, dropout=0.5)
    assert y.std() > 0.05
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)
