"""What saves memory changes no number: the loss in pieces, activations computed twice."""

from functools import partial

import pytest
import torch
from torch import Tensor

from gpt_cli.config import Config, ModelConfig, TrainConfig
from gpt_cli.model import chunked_loss as pieces
from gpt_cli.model.chunked_loss import chunked_loss, wants_pieces
from gpt_cli.model.count import memory_bytes
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.model.place import place
from gpt_cli.model.recompute import recompute_activations
from gpt_cli.runtime.device import Runtime
from gpt_cli.training.evaluate import TokenSizes, cross_entropy, evaluate
from gpt_cli.training.state import TrainingState, mean_loss

CPU = Runtime(torch.device("cpu"), "fp32", threads=1)
VOCAB = 131


def build(**options: object) -> GPT:
    torch.manual_seed(3)
    return GPT(ModelConfig(n_layer=2, n_head=2, n_embd=16, context_length=11, zero_init=False, **options), VOCAB)


def batch(rows: int = 3) -> tuple[Tensor, Tensor]:
    windows = torch.randint(VOCAB, (rows, 12), generator=torch.Generator().manual_seed(rows))
    return windows[:, :-1], windows[:, 1:]


def with_gradients(model: GPT, loss: Tensor) -> dict[str, Tensor]:
    """The loss and the gradient of every parameter, by name."""
    model.zero_grad()
    loss.backward()
    return {"loss": loss.detach(), **{name: p.grad.clone() for name, p in model.named_parameters()}}


@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("rows", [1, 7, 32, 33, 1000])  # of 33 tokens: one by one, a rest, a rest of one, all
def test_the_loss_in_pieces_is_the_loss_with_all_its_gradients(monkeypatch, tie_embeddings, softcap, rows):
    monkeypatch.setattr(pieces, "_CPU_LOGITS", rows * VOCAB)
    model = build(tie_embeddings=tie_embeddings, logit_softcap=softcap).double()
    whole = with_gradients(model, 0.37 * mean_loss(model, *batch()))
    apart = with_gradients(model, 0.37 * chunked_loss(model, *batch()))
    assert whole.keys() == apart.keys()
    for name in whole:
        torch.testing.assert_close(apart[name], whole[name].to(apart[name].dtype), atol=2e-7, rtol=1e-6, msg=name)


def test_in_fp32_the_loss_in_pieces_is_as_near_to_the_exact_one_as_the_plain_loss(monkeypatch):
    monkeypatch.setattr(pieces, "_CPU_LOGITS", 5 * VOCAB)
    model = build(logit_softcap=5.0)
    whole, apart = (with_gradients(model, loss(model, *batch())) for loss in (mean_loss, chunked_loss))
    for name in whole:
        assert (apart[name] - whole[name]).norm() <= 1e-6 * whole[name].norm(), name


def test_in_bf16_products_the_loss_in_pieces_is_off_by_rounding_alone(monkeypatch):
    monkeypatch.setattr(pieces, "_CPU_LOGITS", 7 * VOCAB)
    model = place(build(), Runtime(torch.device("cpu"), "bf16", threads=1))
    whole, apart = (with_gradients(model, loss(model, *batch())) for loss in (mean_loss, chunked_loss))
    for name in whole:
        assert (apart[name] - whole[name]).norm() <= 0.02 * whole[name].norm(), name


def test_no_piece_of_the_logits_is_larger_than_it_may_be(monkeypatch):
    monkeypatch.setattr(pieces, "_CPU_LOGITS", 4 * VOCAB)
    model, sizes = build(), []
    keep = torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.shape) or t, lambda t: t)
    with keep:
        chunked_loss(model, *batch())
    assert sizes
    assert not any(VOCAB in shape and 33 in shape for shape in sizes)  # neither kept nor made whole
    log_softmax, seen = Tensor.log_softmax, []
    monkeypatch.setattr(Tensor, "log_softmax", lambda x, dim: seen.append(len(x)) or log_softmax(x, dim))
    chunked_loss(model, *batch())
    assert seen == [4] * 8 + [1]


def test_a_frozen_head_and_a_model_that_does_not_learn_are_fine(monkeypatch):
    monkeypatch.setattr(pieces, "_CPU_LOGITS", 4 * VOCAB)
    model = build()
    model.head.weight.requires_grad_(False)
    chunked_loss(model, *batch()).backward()
    assert model.head.weight.grad is None
    assert model.norm.weight.grad is not None
    with torch.no_grad():
        torch.testing.assert_close(chunked_loss(model, *batch()), mean_loss(model, *batch()))


def test_evaluation_in_pieces_is_the_evaluation(monkeypatch):
    model = build()
    tokens = torch.randint(VOCAB, (200,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    sizes = TokenSizes(torch.ones(VOCAB, dtype=torch.long), torch.ones(VOCAB, dtype=torch.long))
    whole = evaluate(model, tokens, sizes, CPU)
    monkeypatch.setattr(pieces, "_CPU_LOGITS", 3 * VOCAB)
    assert evaluate(model, tokens, sizes, CPU).loss == pytest.approx(whole.loss, rel=1e-6)


@pytest.mark.parametrize(("vocab_size", "chunked"), [(65, False), (50_257, True)])
def test_a_run_takes_the_loss_in_pieces_where_the_vocabulary_is_large(vocab_size, chunked):
    config = Config(model=ModelConfig(n_layer=1, n_head=1, n_embd=8), train=TrainConfig(batch_size=2))
    state = TrainingState.fresh(config, vocab_size, CPU, print)
    assert isinstance(state.loss, partial)
    assert state.loss.func is (chunked_loss if chunked else mean_loss)
    assert wants_pieces(state.model, 2 * 128) == chunked


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("layout", [{}, {"norm_position": "post", "norm": "layernorm", "mlp": "gelu"}])
def test_activations_computed_twice_give_the_same_bits(dropout, layout):
    model = build(dropout=dropout, attention_dropout=dropout, **layout)
    names = list(model.state_dict())

    def results() -> dict[str, Tensor]:
        torch.manual_seed(17)
        first = with_gradients(model, cross_entropy(model(batch()[0]), batch()[1]))
        return {**first, "the noise afterwards": torch.rand(3)}

    kept = results()
    again = results()
    recompute_activations(model)
    recomputed = results()
    assert list(model.state_dict()) == names
    for name in kept:
        assert recomputed[name].equal(kept[name]), name
        assert again[name].equal(kept[name]), name


def test_activations_computed_twice_are_not_kept():
    model = build()

    def kept_numbers() -> int:
        storages: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: storages.update({t.untyped_storage().data_ptr(): t.numel()}) or t, lambda t: t
        ):
            loss = cross_entropy(model(batch(64)[0]), batch(64)[1])
        loss.backward()
        return sum(storages.values())

    before = kept_numbers()
    recompute_activations(model)
    assert kept_numbers() < before / 3


def test_decoding_with_a_cache_is_untouched_by_computing_activations_twice():
    model, tokens = build(), batch(1)[0]
    whole = model(tokens)
    recompute_activations(model)
    cache = KVCache(model.config, 1)
    with torch.no_grad():
        pieces_of_text = [model(part, cache) for part in tokens.split(4, dim=1)]
    torch.testing.assert_close(torch.cat(pieces_of_text, dim=1), whole)


def test_the_estimate_of_memory_knows_both():
    config = Config(model=ModelConfig(n_layer=12, n_embd=64, context_length=256), train=TrainConfig(batch_size=64))
    large, small = memory_bytes(config, 50_257)["activations"], memory_bytes(config, 65)["activations"]
    assert large - small < 4 * 64 * 256 * 50_257 / 10
    recomputed = config.model_copy(update={"train": TrainConfig(batch_size=64, activation_checkpointing=True)})
    assert memory_bytes(recomputed, 65)["activations"] < small / 4
