"""Every attention backend is the definition, faster; and the definition sees no future."""

import math

import pytest
import torch
from torch import Tensor

from gpt_cli.model.attention import (
    alibi_slopes,
    causal_attention,
    causal_mask,
    reference_attention,
)
from tests.support.tensors import assert_equal_with_gradients

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


@pytest.mark.parametrize(
    "slopes", [None, torch.tensor([0.5, 0.0, 2.0, 0.25], dtype=torch.float64)], ids=["plain", "alibi"]
)
def test_the_reference_is_softmax_attention_over_the_visible_keys_one_query_at_a_time(slopes):
    q, k, v = random_qkv(3, 5)
    expected = torch.empty(2, 4, 3, 8, dtype=torch.float64)
    for b in range(2):
        for h in range(4):
            for t in range(3):
                visible = range(5 - 3 + t + 1)
                slope = 0.0 if slopes is None else float(slopes[h])
                scores = [q[b, h, t] @ k[b, h, s] / math.sqrt(8) - slope * (5 - 3 + t - s) for s in visible]
                weights = torch.stack(scores).exp()
                expected[b, h, t] = sum(w * v[b, h, s] for w, s in zip(weights / weights.sum(), visible, strict=True))
    torch.testing.assert_close(reference_attention(q, k, v, slopes=slopes), expected)


@pytest.mark.parametrize("n_kv_head", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("slopes", [None, alibi_slopes(4)], ids=["plain", "alibi"])
@pytest.mark.parametrize(("n_query", "n_key"), SHAPES)
def test_attention_equals_the_reference_and_so_do_its_gradients(n_kv_head, window, slopes, n_query, n_key):
    inputs = random_qkv(n_query, n_key, n_kv_head=n_kv_head)
    expected = reference_attention(*inputs, window=window, slopes=slopes)
    actual = causal_attention(*inputs, window=window, slopes=slopes)
    assert_equal_with_gradients(actual, expected, inputs)


@pytest.mark.parametrize("backend", [causal_attention, reference_attention])
@pytest.mark.parametrize("slopes", [None, alibi_slopes(4)], ids=["plain", "alibi"])
def test_a_query_has_exactly_zero_gradient_to_later_and_windowed_out_keys(backend, slopes):
    q, k, v = random_qkv(6, 6)
    for t in range(6):
        gradients = torch.autograd.grad(backend(q, k, v, window=4, slopes=slopes)[:, :, t].sum(), (k, v))
        to_k, to_v = (gradient.abs().sum(dim=(0, 1, 3)) > 0 for gradient in gradients)
        assert to_v.tolist() == [t - 4 < s <= t for s in range(6)]
        assert not (to_k & ~to_v).any()


def test_alibi_slopes_are_those_of_the_paper_and_of_its_code_where_heads_are_no_power_of_two():
    assert alibi_slopes(8).tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    torch.testing.assert_close(alibi_slopes(16)[:3], torch.tensor([2**-0.5, 2**-1, 2**-1.5]))
    torch.testing.assert_close(alibi_slopes(12), torch.cat([alibi_slopes(8), alibi_slopes(16)[::2][:4]]))
    for n_head in range(1, 40):
        assert len(set(alibi_slopes(n_head).tolist())) == n_head


def test_visible_keys_ends_at_the_query_and_starts_a_window_before():
    assert causal_mask(2, 4, None, torch.device("cpu")).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert causal_mask(2, 4, 2, torch.device("cpu")).int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize("n_kv_head", [1, 4])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("n_key", [7, 191, 192])  # by plain products on a CPU up to 191 keys
def test_attention_in_bf16_is_the_reference_up_to_rounding_and_so_are_its_gradients(n_kv_head, window, n_key):
    exact = random_qkv(n_key, n_key, n_kv_head=n_kv_head)
    rounded = [t.detach().bfloat16().requires_grad_() for t in exact]
    expected, actual = reference_attention(*exact, window=window), causal_attention(*rounded, window=window)
    pairs = [
        (actual, expected),
        *zip(torch.autograd.grad(actual.sum(), rounded), torch.autograd.grad(expected.sum(), exact), strict=True),
    ]
    for a, e in pairs:
        assert a.dtype == torch.bfloat16
        assert (a - e).norm() <= 0.03 * e.norm()


def test_attention_dropout_zeroes_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    q, k = torch.zeros(64, 4, 32, 8), torch.zeros(64, 4, 32, 8)
    v = torch.ones(64, 4, 32, 8)
    y = causal_attention(q, k, v, dropout=0.5)
    assert y.std() > 0.05
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)
