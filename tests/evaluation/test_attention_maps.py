"""`gpt attention` shows what the model does: the weights are the model's own, and heads are called what they are."""

import itertools

import pytest
import torch

from gpt_cli.config import ModelConfig
from gpt_cli.evaluation.attention_capture import capture_attention
from gpt_cli.evaluation.attention_heads import THRESHOLD, classify_head, classify_heads
from gpt_cli.model.attention import reference_attention
from gpt_cli.model.gpt import GPT

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
OPTIONS = {
    "n_kv_head": [None, 2, 1],
    "position": ["learned", "sinusoidal", "rope", "none"],
    "qk_norm": [True, False],
    "window": [None, 1, 5],
    "bias": [False, True],
    "norm_position": ["pre", "post"],
}


def random_model(seed: int = 0, **options: object) -> GPT:
    """A small model whose every weight is drawn, so that nothing is zero by initialisation."""
    torch.manual_seed(seed)
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 32, "context_length": 24}
    model = GPT(ModelConfig.model_validate(shape | options), 10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model


@pytest.mark.parametrize("choice", list(itertools.product(*OPTIONS.values())), ids=str)
def test_weights_times_values_are_the_output_of_the_models_own_attention_for_every_option(choice):
    model = random_model(**dict(zip(OPTIONS, choice, strict=True)))
    layers = capture_attention(model, TOKENS)
    assert [layer.layer for layer in layers] == [0, 1]
    for layer in layers:
        assert layer.weights().shape == (4, len(TOKENS), len(TOKENS))
        assert layer.output.abs().max() > 0.01
        values = layer.v.double().repeat_interleave(layer.group, dim=0)
        mixed = (layer.scores().softmax(dim=-1) @ values).float()
        torch.testing.assert_close(mixed, layer.output, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            mixed,
            reference_attention(layer.q[None], layer.k[None], layer.v[None], window=layer.window)[0],
            rtol=1e-6,
            atol=1e-6,
        )


def test_weights_of_a_query_sum_to_one_and_the_future_and_what_the_window_hides_have_none():
    for window in (None, 3):
        for layer in capture_attention(random_model(window=window), TOKENS):
            weights = layer.weights()
            torch.testing.assert_close(weights.sum(-1), torch.ones(4, len(TOKENS)))
            assert not weights.triu(1).any()
            if window:
                assert not weights.tril(-window).any()


def test_looking_leaves_the_model_as_it_was():
    model = random_model(dropout=0.3).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    capture_attention(model, TOKENS)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_failed_pass_leaves_the_model_in_its_mode():
    model = random_model().train()
    with pytest.raises(ValueError, match="do not fit"):
        capture_attention(model, [1] * 25)
    assert model.training


def test_dropout_does_not_disturb_what_is_seen():
    model = random_model(dropout=0.5, attention_dropout=0.5).train()
    first, second = (capture_attention(model, TOKENS) for _ in range(2))
    assert all(torch.equal(a.output, b.output) for a, b in zip(first, second, strict=True))


def one_hot(keys: list[int]) -> torch.Tensor:
    """(T, T) weights of a head whose query t looks at key keys[t] alone."""
    weights = torch.zeros(len(keys), len(keys))
    weights[torch.arange(len(keys)), torch.tensor(keys)] = 1.0
    return weights


def test_a_head_that_looks_one_back_is_a_previous_token_head():
    head = classify_head(one_hot([0, *range(11)]), list(range(12)))
    assert head.marks == ("previous",)
    assert head.scores == {"previous": 1.0, "first": 0.0, "induction": None}


def test_a_head_that_looks_at_the_first_token_is_a_sink():
    head = classify_head(one_hot([0] * 12), [*range(6), *range(6)])
    assert head.marks == ("first",)
    assert head.scores == {"previous": 0.0, "first": 1.0, "induction": 0.0}


def test_a_head_that_looks_at_what_followed_the_same_token_is_an_induction_head():
    tokens = [*range(6), *range(6)]
    head = classify_head(one_hot([*range(6), *range(1, 7)]), tokens)
    assert head.marks == ("induction",)
    assert head.scores["induction"] == 1.0


def test_an_even_head_is_none_of_these_whatever_the_text():
    for tokens in ([*range(12)], [1] * 12, [1, 2] * 6, [*range(6), *range(6)]):
        even = torch.ones(12, 12).tril() / torch.arange(1, 13)[:, None]
        assert classify_head(even, tokens).marks == ()


def test_induction_counts_every_earlier_occurrence_and_never_the_query_itself():
    weights = torch.zeros(6, 6)
    weights[:, 0] = 1.0
    weights[4] = torch.tensor([0.0, 0.3, 0.0, 0.5, 0.2, 0.0])  # token 7 again: it was followed at 1 and at 3
    head = classify_head(weights, [7, 1, 7, 2, 7, 3])
    assert head.scores["induction"] == pytest.approx((0.0 + 0.8) / 2)  # queries 2 and 4 are asked
    assert (
        classify_head(one_hot([0, 1, 2]), [7, 7, 8]).scores["induction"] is None
    )  # 7 was followed by the query itself


def test_a_text_too_short_to_choose_in_has_no_scores():
    for n_token in (1, 2):
        head = classify_head(one_hot([0] * n_token), list(range(n_token)))
        assert head.scores == {"previous": None, "first": None, "induction": None}
        assert head.marks == ()


def test_a_mark_needs_the_score_that_the_page_states():
    def mostly_previous(share: float) -> torch.Tensor:
        return share * one_hot([0, *range(29)]) + (1 - share) * torch.eye(30)

    assert classify_head(mostly_previous(THRESHOLD + 0.01), list(range(30))).marks == ("previous",)
    assert classify_head(mostly_previous(THRESHOLD - 0.01), list(range(30))).marks == ()


def test_every_head_of_every_layer_is_scored_in_order():
    layers = capture_attention(random_model(), TOKENS)
    heads = classify_heads(layers, TOKENS)
    assert [(head.layer, head.head) for head in heads] == [(layer, head) for layer in range(2) for head in range(4)]
    previous = layers[1].weights()[2].diagonal(-1)[1:].mean()
    assert heads[6].scores["previous"] == pytest.approx(float(previous))
