"""What saves memory changes no number: the loss in pieces, activations computed twice."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from gpt_cli.config import ModelConfig
from gpt_cli.model import chunked_loss as pieces
from gpt_cli.model.activation_checkpointing import apply_activation_checkpointing
from gpt_cli.model.chunked_loss import chunked_loss, needs_chunking, rows_per_chunk
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.runtime.device import Runtime
from gpt_cli.tokenizer import ByteTokenizer
from gpt_cli.training.evaluate import IGNORED, EvaluationText, cross_entropy, evaluate
from gpt_cli.training.grad_scaler import GradScaler
from gpt_cli.training.torch_engine import TorchEngine, token_loss

CPU = Runtime(torch.device("cpu"), "fp32", threads=1)
VOCAB = 131


def build(**options: object) -> GPT:
    torch.manual_seed(3)
    return GPT(ModelConfig(n_layer=2, n_head=2, n_embd=16, context_length=11, zero_init=False, **options), VOCAB)


def batch(rows: int = 3) -> tuple[Tensor, Tensor]:
    windows = torch.randint(VOCAB, (rows, 12), generator=torch.Generator().manual_seed(rows))
    return windows[:, :-1], windows[:, 1:]


def mean_loss(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(model(inputs), targets)


def loss_and_gradients(model: GPT, loss: Tensor) -> dict[str, Tensor]:
    """The loss and the gradient of every parameter, by name."""
    model.zero_grad()
    loss.backward()
    return {"loss": loss.detach(), **{name: p.grad.clone() for name, p in model.named_parameters()}}


@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("rows", [1, 7, 32, 33, 1000])  # of 33 tokens: one by one, a rest, a rest of one, all
def test_the_loss_in_pieces_is_the_loss_with_all_its_gradients(monkeypatch, tie_embeddings, softcap, rows):
    monkeypatch.setattr(pieces, "MAX_CPU_LOGITS", rows * VOCAB)
    model = build(tie_embeddings=tie_embeddings, logit_softcap=softcap).double()
    expected = loss_and_gradients(model, 0.37 * mean_loss(model, *batch()))
    actual = loss_and_gradients(model, 0.37 * chunked_loss(model, *batch()))
    assert expected.keys() == actual.keys()
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name].to(actual[name].dtype), atol=2e-7, rtol=1e-6, msg=name)


@pytest.mark.parametrize(("reduction", "share"), [("sum", 0.5), ("sum", 1.0), ("mean", 0.5)])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_what_is_ignored_changes_neither_the_loss_in_pieces_nor_its_gradients(monkeypatch, softcap, reduction, share):
    monkeypatch.setattr(pieces, "MAX_CPU_LOGITS", 7 * VOCAB)
    model = build(logit_softcap=softcap).double()
    inputs, targets = batch()
    ignored_mask = torch.rand(targets.shape, generator=torch.Generator().manual_seed(1)) < share
    targets = targets.masked_fill(ignored_mask, IGNORED)
    expected = loss_and_gradients(model, cross_entropy(model(inputs), targets, reduction))
    actual = loss_and_gradients(model, chunked_loss(model, inputs, targets, reduction))
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name].to(actual[name].dtype), atol=2e-6, rtol=1e-6, msg=name)


def test_in_fp32_the_loss_in_pieces_is_as_near_to_the_exact_one_as_the_plain_loss(monkeypatch):
    monkeypatch.setattr(pieces, "MAX_CPU_LOGITS", 5 * VOCAB)
    model = build(logit_softcap=5.0)
    expected, actual = (loss_and_gradients(model, loss(model, *batch())) for loss in (mean_loss, chunked_loss))
    for name in expected:
        assert (actual[name] - expected[name]).norm() <= 1e-6 * expected[name].norm(), name


def test_under_autocast_the_loss_in_pieces_is_off_by_rounding_alone(monkeypatch):
    monkeypatch.setattr(pieces, "MAX_CPU_LOGITS", 7 * VOCAB)
    model = build()
    with Runtime(torch.device("cpu"), "bf16", threads=1).autocast():
        expected, actual = (loss_and_gradients(model, loss(model, *batch())) for loss in (mean_loss, chunked_loss))
    for name in expected:
        assert (actual[name] - expected[name]).norm() <= 0.02 * expected[name].norm(), name


def test_the_tokens_of_a_piece_are_a_multiple_of_128_unless_the_vocabulary_is_too_large():
    cpu = torch.device("cpu")
    for vocab_size, rows in [(50_257, 128), (10_000, 768), (65_536, 128), (65_537, 127), (10**9, 1)]:
        assert rows_per_chunk(vocab_size, cpu) == rows


@pytest.mark.parametrize(("gibibytes", "logits"), [(8, 2**27), (24, 2**27), (40, 2**28), (80, 2**29), (141, 2**29)])
def test_a_gpu_with_more_memory_has_larger_pieces(monkeypatch, gibibytes, logits):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    memory = SimpleNamespace(total_memory=gibibytes * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    assert pieces.max_chunk_logits(torch.device("cuda")) == logits


def test_no_piece_of_the_logits_is_larger_than_it_may_be(monkeypatch):
    monkeypatch.setattr(pieces, "MAX_CPU_LOGITS", 4 * VOCAB)
    model, sizes = build(), []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.shape) or t, lambda t: t)
    with hooks:
        chunked_loss(model, *batch())
    assert sizes
    assert not any(VOCAB in shape and 33 in shape for shape in sizes)  # neither kept nor made whole
    log_softmax, chunk_rows = Tensor.log_softmax, []
    monkeypatch.setattr(Tensor, "log_softmax", lambda x, dim: chunk_rows.append(len(x)) or log_softmax(x, dim))
    chunked_loss(model, *batch())
    assert chunk_rows == [4] * 8 + [1]


def test_a_frozen_head_and_a_model_that_does_not_learn_are_fine(monkeypatch):
    monkeypatch.setattr(pieces, "MAX_CPU_LOGITS", 4 * VOCAB)
    model = build()
    model.head.weight.requires_grad_(False)
    chunked_loss(model, *batch()).backward()
    assert model.head.weight.grad is None
    assert model.norm.weight.grad is not None
    with torch.no_grad():
        torch.testing.assert_close(chunked_loss(model, *batch()), mean_loss(model, *batch()))


def test_evaluation_in_pieces_is_the_evaluation(monkeypatch):
    model = build()
    text = EvaluationText.of(np.arange(200, dtype=np.uint16) % VOCAB, ByteTokenizer(), CPU.device)
    engine = TorchEngine(model, CPU, GradScaler(False), print)
    expected = evaluate(model, engine, text)
    monkeypatch.setattr(pieces, "MAX_CPU_LOGITS", 3 * VOCAB)
    assert evaluate(model, engine, text).loss == pytest.approx(expected.loss, rel=1e-6)


@pytest.mark.parametrize(("vocab_size", "chunked"), [(65, False), (50_257, True)])
def test_the_loss_is_taken_in_pieces_where_the_vocabulary_is_large(monkeypatch, vocab_size, chunked):
    calls = []
    monkeypatch.setattr(
        "gpt_cli.training.torch_engine.chunked_loss", lambda *args: calls.append(args) or chunked_loss(*args)
    )
    model = GPT(ModelConfig(n_layer=1, n_head=1, n_embd=8), vocab_size)
    tokens = torch.zeros(2, 128, dtype=torch.int64)
    torch.testing.assert_close(token_loss(model, tokens, tokens), mean_loss(model, tokens, tokens))
    assert bool(calls) == needs_chunking(model, 2 * 128) == chunked


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("layout", [{}, {"norm_position": "post", "norm": "layernorm", "mlp": "gelu"}])
def test_activations_computed_twice_give_the_same_bits(dropout, layout):
    model = build(dropout=dropout, attention_dropout=dropout, **layout)
    names = list(model.state_dict())

    def results() -> dict[str, Tensor]:
        torch.manual_seed(17)
        gradients = loss_and_gradients(model, cross_entropy(model(batch()[0]), batch()[1]))
        return {**gradients, "the noise afterwards": torch.rand(3)}

    expected = results()
    repeated_results = results()
    apply_activation_checkpointing(model)
    recomputed_results = results()
    assert list(model.state_dict()) == names
    for name in expected:
        assert recomputed_results[name].equal(expected[name]), name
        assert repeated_results[name].equal(expected[name]), name


def test_activations_computed_twice_are_not_kept():
    model = build()

    def count_saved_values() -> int:
        storages: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: storages.update({t.untyped_storage().data_ptr(): t.numel()}) or t, lambda t: t
        ):
            loss = cross_entropy(model(batch(64)[0]), batch(64)[1])
        loss.backward()
        return sum(storages.values())

    old_count = count_saved_values()
    apply_activation_checkpointing(model)
    assert count_saved_values() < old_count / 3


def test_decoding_with_a_cache_is_untouched_by_computing_activations_twice():
    model, tokens = build(), batch(1)[0]
    expected = model(tokens)
    apply_activation_checkpointing(model)
    cache = KVCache(model.config, 1)
    with torch.no_grad():
        pieces_of_text = [model(chunk, cache) for chunk in tokens.split(4, dim=1)]
    torch.testing.assert_close(torch.cat(pieces_of_text, dim=1), expected)
