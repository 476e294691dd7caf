"""The exact loss: every token once, whatever the windows per pass, without touching randomness."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpt_cli.config import ModelConfig
from gpt_cli.errors import UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.device import Runtime
from gpt_cli.tokenizer import ByteTokenizer
from gpt_cli.training.evaluate import Evaluation, TokenSizes, _sizes_of, evaluate

RUNTIME = Runtime(torch.device("cpu"), "fp32", threads=1)
SIZES = TokenSizes.of(ByteTokenizer(), torch.device("cpu"))


def make_model() -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=1, n_embd=32, context_length=8, zero_init=False, init_std=0.3, dropout=0.5), 256)


def text_tokens(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.int32)


def reference_loss(model: GPT, tokens: torch.Tensor) -> float:
    """One window at a time, one log-probability at a time."""
    model.eval()
    total = 0.0
    for start in range(0, len(tokens) - 1, 8):
        window = tokens[start : start + 9].long()
        log_probabilities = model(window[None, :-1])[0].double().log_softmax(-1)
        total -= sum(log_probabilities[i, target].item() for i, target in enumerate(window[1:]))
    return total / (len(tokens) - 1)


@pytest.mark.parametrize("n_token", [2, 8, 9, 10, 17, 100])
@pytest.mark.parametrize(("batch_size", "dtype"), [(1, torch.int32), (3, torch.uint16), (None, torch.uint32)])
def test_it_is_the_mean_over_every_token_but_the_first(n_token, batch_size, dtype):
    model, tokens = make_model(), torch.randint(256, (n_token,)).to(dtype)
    evaluation = evaluate(model, tokens, SIZES, RUNTIME, batch_size)
    assert evaluation.tokens == n_token - 1
    assert evaluation.loss == pytest.approx(reference_loss(model, tokens), rel=1e-5)


def test_it_leaves_the_random_state_and_the_mode_of_the_model_alone():
    model = make_model().train()
    before = torch.get_rng_state()
    losses = {evaluate(model, text_tokens("to be or not to be"), SIZES, RUNTIME).loss for _ in range(2)}
    assert len(losses) == 1
    assert model.training
    assert torch.get_rng_state().equal(before)


def test_a_uniform_model_costs_eight_bits_per_byte_and_more_per_character_of_many_bytes():
    model = make_model()
    torch.nn.init.zeros_(model.head.weight)
    text = "aé漢🙂" * 10
    evaluation = evaluate(model, text_tokens("x" + text), SIZES, RUNTIME)
    assert evaluation.loss == pytest.approx(math.log(256), rel=1e-6)
    assert evaluation.perplexity == pytest.approx(256, rel=1e-5)
    assert (evaluation.bytes, evaluation.characters) == (len(text.encode()), len(text))
    assert evaluation.bpb == pytest.approx(8.0)
    assert evaluation.bpc == pytest.approx(8.0 * (1 + 2 + 3 + 4) / 4)


def test_a_text_of_one_token_is_an_error():
    with pytest.raises(UserError, match="leaves nothing to predict"):
        evaluate(make_model(), text_tokens("a"), SIZES, RUNTIME)


def test_perplexity_of_a_hopeless_model_is_large_not_an_overflow():
    assert Evaluation(loss=1e6, tokens=1, characters=1, bytes=1).perplexity > 1e300


class Reads(TorchDispatchMode):
    """Counts how often a number is asked of a tensor, for which a GPU would be waited for."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_no_window_is_waited_for(monkeypatch):
    model, tokens = make_model(), torch.randint(256, (100,), dtype=torch.int32)
    lists, tolist = [], torch.Tensor.tolist  # which no dispatch sees on a CPU
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: lists.append(tensor.shape) or tolist(tensor))
    with Reads() as reads:
        tokens.sum().item()
        evaluate(model, tokens, SIZES, RUNTIME, batch_size=1)
    assert reads.count == 1  # the one of this test
    n_windows = -(-99 // model.config.context_length)
    assert n_windows > 2
    assert lists == [(n_windows,), (2,)]  # all losses at the end, and what the tokens stand for


def test_what_tokens_stand_for_is_the_same_counted_and_looked_up():
    tokens = torch.randint(256, (3000,), dtype=torch.int32)
    assert _sizes_of(tokens, SIZES, counted=True).equal(_sizes_of(tokens, SIZES, counted=False))
    there = TokenSizes(SIZES.bytes.to("meta"), SIZES.characters.to("meta"))
    assert _sizes_of(tokens.to("meta"), there, counted=False).shape == (2,)
